package main

import (
	"context"

	"google.golang.org/grpc"

	commonv1 "viewstamp.example/gen/viewstamp/api/common/v1"
	streamsv1 "viewstamp.example/gen/viewstamp/api/streams/v1"
	usersv1 "viewstamp.example/gen/viewstamp/api/users/v1"
)

const (
	partitionsCount = 1
	// So small that the example shows several pages; 1000 is the most.
	pageSize = 2
)

// runLogin shows who we are: every other command logs in by itself, in Cluster.Connect.
func runLogin(ctx context.Context, cluster *Cluster) error {
	request := &usersv1.WhoAmIRequest{}
	response, err := Call(ctx, cluster,
		func(ctx context.Context, connection *grpc.ClientConn) (*usersv1.WhoAmIResponse, error) {
			return usersv1.NewUsersServiceClient(connection).WhoAmI(ctx, request)
		})
	if err != nil {
		return err
	}
	return tell(map[string]any{"user_id": response.User.Id, "username": response.User.Username})
}

// runTopology makes sure that a stream and its topics exist, and lists the topics.
func runTopology(ctx context.Context, cluster *Cluster, stream string, topics []string) error {
	_, err := Call(ctx, cluster,
		func(ctx context.Context, connection *grpc.ClientConn) (*streamsv1.CreateStreamResponse, error) {
			request := &streamsv1.CreateStreamRequest{Name: stream}
			return streamsv1.NewStreamsServiceClient(connection).CreateStream(ctx, request)
		})
	if err := tellCreated("stream", stream, err, "STREAM_EXISTS"); err != nil {
		return err
	}
	for _, topic := range topics {
		_, err := Call(ctx, cluster,
			func(ctx context.Context, connection *grpc.ClientConn) (*streamsv1.CreateTopicResponse, error) {
				request := &streamsv1.CreateTopicRequest{
					Stream: named(stream), Name: topic, PartitionsCount: partitionsCount,
				}
				return streamsv1.NewStreamsServiceClient(connection).CreateTopic(ctx, request)
			})
		if err := tellCreated("topic", topic, err, "TOPIC_EXISTS"); err != nil {
			return err
		}
	}
	listed, _, err := listTopics(ctx, cluster, named(stream))
	for _, topic := range listed {
		if err := tell(described(topic)); err != nil {
			return err
		}
	}
	return err
}

// tellCreated prints whether a command created an entity. That it exists is no error: the command
// may even have created it in an attempt whose answer was lost.
func tellCreated(kind, name string, err error, exists string) error {
	if err != nil && refusalOf(err).Reason != exists {
		return err
	}
	return tell(map[string]any{kind: name, "created": err == nil})
}

// listTopics returns all topics of a stream, and the revision of the first page. Pages may be of
// several revisions: a watch from behind the first one brings what has changed in between.
func listTopics(
	ctx context.Context, cluster *Cluster, stream *commonv1.Identifier,
) (topics []*streamsv1.Topic, revision uint64, err error) {
	request := &streamsv1.ListTopicsRequest{Stream: stream, PageSize: pageSize}
	for {
		page, err := Call(ctx, cluster,
			func(ctx context.Context, connection *grpc.ClientConn) (*streamsv1.ListTopicsResponse, error) {
				return streamsv1.NewStreamsServiceClient(connection).ListTopics(ctx, request)
			})
		if err != nil {
			return nil, 0, err
		}
		if revision == 0 {
			revision = page.Header.Revision
		}
		topics = append(topics, page.Topics...)
		if page.NextPageToken == "" {
			return topics, revision, nil
		}
		request.PageToken = page.NextPageToken
	}
}

func named(name string) *commonv1.Identifier {
	return &commonv1.Identifier{Kind: &commonv1.Identifier_Name{Name: name}}
}

func described(topic *streamsv1.Topic) map[string]any {
	return map[string]any{
		"topic": topic.Name, "id": topic.Id, "partitions_count": topic.PartitionsCount,
	}
}

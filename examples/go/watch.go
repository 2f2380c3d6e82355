package main

import (
	"context"
	"maps"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	commonv1 "viewstamp.example/gen/viewstamp/api/common/v1"
	streamsv1 "viewstamp.example/gen/viewstamp/api/streams/v1"
	watchv1 "viewstamp.example/gen/viewstamp/api/watch/v1"
)

// A topicWatch prints every change of the topics of a stream once, in order, whatever happens to
// replicas. Its place is all that it has to keep.
type topicWatch struct {
	cluster *Cluster
	stream  *commonv1.Identifier
	// Everything up to this revision was printed.
	complete uint64
	// The cluster that the revision belongs to; empty before it is known.
	clusterID []byte
	// Changes of a revision of which more follow.
	parts []*watchv1.Change
}

// runWatch prints changes from a revision on, until the context ends.
func runWatch(ctx context.Context, cluster *Cluster, stream string, revision uint64) error {
	found, err := Call(ctx, cluster,
		func(ctx context.Context, connection *grpc.ClientConn) (*streamsv1.GetStreamResponse, error) {
			request := &streamsv1.GetStreamRequest{Stream: named(stream)}
			return streamsv1.NewStreamsServiceClient(connection).GetStream(ctx, request)
		})
	if err != nil {
		return err
	}
	// A name may mean another stream tomorrow, and an id never does.
	id := &commonv1.Identifier{Kind: &commonv1.Identifier_Id{Id: found.Stream.Id}}
	watch := &topicWatch{cluster: cluster, stream: id, complete: revision - 1}
	for {
		err := watch.follow(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err := watch.prepare(ctx, err); err != nil {
			return err
		}
	}
}

// follow watches at one replica. Any replica serves watches. It returns why the watch ended.
func (w *topicWatch) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	connection, ctx, err := w.cluster.Connect(ctx)
	if err != nil {
		return err
	}
	call, err := watchv1.NewWatchServiceClient(connection).Watch(ctx, &watchv1.WatchRequest{
		FromRevision:          w.complete + 1,
		ClusterId:             w.clusterID,
		Stream:                w.stream,
		EntityTypes:           []string{"viewstamp.api.streams.v1.Topic"},
		ProgressNotifications: true,
	})
	if err != nil {
		return err
	}
	for isFirst := true; ; isFirst = false {
		response, err := call.Recv()
		if err != nil {
			return err
		}
		if !isFirst {
			w.cluster.Reached() // the first message comes at once, and shows no progress
		}
		if err := w.take(response); err != nil {
			return err
		}
	}
}

// take prints what a message completes. Only the header says that a revision is complete; changes
// behind it wait for the next header.
func (w *topicWatch) take(response *watchv1.WatchResponse) error {
	w.clusterID = response.Header.ClusterId
	w.parts = append(w.parts, response.Changes...)
	for len(w.parts) > 0 && w.parts[0].Revision <= response.Header.Revision {
		if err := tellChange(w.parts[0]); err != nil {
			return err
		}
		w.parts = w.parts[1:]
	}
	w.complete = response.Header.Revision
	return nil
}

// prepare makes ready for the next call, which begins behind the last complete revision.
func (w *topicWatch) prepare(ctx context.Context, err error) error {
	w.parts = nil // they come again
	refusal := refusalOf(err)
	switch refusal.Reason {
	case "REVISION_COMPACTED":
		return w.listAnew(ctx)
	case "ACCESS_CHANGED":
		// Everything up to the revision that it names has come. The cluster decides anew from there.
		revision, err := strconv.ParseUint(refusal.Details["revision"], 10, 64)
		if err != nil {
			return err
		}
		w.complete = max(w.complete, revision)
	}
	return w.cluster.Prepare(ctx, refusal)
}

// listAnew prints all topics, because the changes since our place are not kept any more. The watch
// goes on behind the revision of the list.
func (w *topicWatch) listAnew(ctx context.Context) error {
	topics, revision, err := listTopics(ctx, w.cluster, w.stream)
	if err != nil {
		return err
	}
	list := []map[string]any{}
	for _, topic := range topics {
		list = append(list, described(topic))
	}
	w.complete = revision
	return tell(map[string]any{"revision": revision, "list": list})
}

func tellChange(change *watchv1.Change) error {
	topic := &streamsv1.Topic{}
	if err := proto.Unmarshal(change.Entity, topic); err != nil {
		return err
	}
	line := map[string]any{
		"revision": change.Revision,
		"kind":     strings.ToLower(strings.TrimPrefix(change.Kind.String(), "CHANGE_KIND_")),
	}
	maps.Copy(line, described(topic))
	return tell(line)
}

package main

import (
	"bufio"
	"context"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	commonv1 "viewstamp.example/gen/viewstamp/api/common/v1"
	routingv1 "viewstamp.example/gen/viewstamp/api/routing/v1"
	streamsv1 "viewstamp.example/gen/viewstamp/api/streams/v1"
	submitv1 "viewstamp.example/gen/viewstamp/api/submit/v1"
)

// Messages in a span are encoded as `repeated Message items = 1` would be.
const itemsField = 1

// runAddPartitions adds partitions to a topic: as many at a time as each line of the input says. A
// command that took effect twice, or never, would show in the counts of all later answers.
func runAddPartitions(
	ctx context.Context, cluster *Cluster, stream, topic string, lines *bufio.Scanner,
) error {
	commands := make(chan *submitv1.Span)
	submission := &Submission{cluster: cluster, commands: commands, answered: tellReply}
	failed := make(chan error, 1)
	go func() {
		defer close(commands)
		for lines.Scan() {
			command, err := addPartitions(named(stream), named(topic), lines.Text())
			if err != nil {
				failed <- err
				return
			}
			commands <- command
		}
		failed <- lines.Err()
	}()
	if err := submission.Run(ctx); err != nil {
		return err
	}
	return <-failed
}

// addPartitions returns the command as a span, which is how a Submit stream carries it.
func addPartitions(stream, topic *commonv1.Identifier, line string) (*submitv1.Span, error) {
	count, err := strconv.ParseUint(line, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("%q is no count of partitions", line)
	}
	encoded, err := proto.Marshal(&streamsv1.CreatePartitionsRequest{
		Stream: stream, Topic: topic, PartitionsCount: uint32(count),
	})
	if err != nil {
		return nil, err
	}
	items := protowire.AppendTag(nil, itemsField, protowire.BytesType)
	items = protowire.AppendBytes(items, encoded)
	code := methodCode("StreamsService", "CreatePartitions")
	return &submitv1.Span{Code: code, Count: 1, Items: items}, nil
}

// methodCode returns the number of a command, which is an option of its method in the protos.
func methodCode(service, method string) uint32 {
	file := streamsv1.File_viewstamp_api_streams_v1_streams_service_proto
	options := file.Services().ByName(protoreflect.Name(service)).Methods().ByName(protoreflect.Name(method)).Options()
	return proto.GetExtension(options, routingv1.E_Command).(*routingv1.CommandOptions).Code
}

// tellReply prints the result of the only command of a request.
func tellReply(reply *submitv1.CommandReply) error {
	line := map[string]any{"number": reply.Number, "revision": reply.Header.Revision}
	span := reply.Spans[0]
	if len(span.Errors) > 0 {
		// The cluster decided so: a result like any other, which a retry gets again.
		line["refused"] = refusalIn(span.Errors[0].Error).Reason
		return tell(line)
	}
	_, _, tagBytes := protowire.ConsumeTag(span.Results)
	encoded, bytes := protowire.ConsumeBytes(span.Results[max(tagBytes, 0):])
	result := &streamsv1.CreatePartitionsResponse{}
	if tagBytes < 0 || bytes < 0 {
		return fmt.Errorf("the result of request %d cannot be read", reply.Number)
	}
	if err := proto.Unmarshal(encoded, result); err != nil {
		return err
	}
	line["partitions_count"] = result.PartitionsCount
	return tell(line)
}

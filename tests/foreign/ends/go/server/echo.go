package main

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

const (
	service   = "test.Echo"
	faltered  = 3
	drained   = 5
	drainGap  = 100 * time.Millisecond
	slowGap   = 5 * time.Millisecond
	lookAgain = 10 * time.Millisecond
	sleep     = time.Minute
)

// echo is the service, and how many sleeping calls it has seen cancelled.
type echo struct {
	servers   []*grpc.Server
	cancelled atomic.Int64
}

type method func(stream grpc.ServerStream) error

func (all *echo) description() *grpc.ServiceDesc {
	methods := map[string]method{
		"Echo": answering(func(request []byte) []byte { return request }), "Count": count,
		"Sum": sum, "Slow": slow, "Chat": chat, "Refuse": refuse, "Falter": falter, "Halt": halt,
		"Break": fail, "Tell": tell, "Who": who, "Sleep": all.sleep, "Seen": all.seen, "Drain": all.drain,
	}
	made := &grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil)}
	for name, serve := range methods {
		made.Streams = append(made.Streams, grpc.StreamDesc{
			StreamName: name, ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error { return serve(stream) },
		})
	}
	return made
}

func received(stream grpc.ServerStream) ([]byte, error) {
	var message []byte
	err := stream.RecvMsg(&message)
	return message, err
}

func answering(answer func([]byte) []byte) method {
	return func(stream grpc.ServerStream) error {
		request, err := received(stream)
		if err != nil {
			return err
		}
		made := answer(request)
		return stream.SendMsg(&made)
	}
}

func count(stream grpc.ServerStream) error {
	request, err := received(stream)
	if err != nil {
		return err
	}
	var messages, size int
	fmt.Sscan(string(request), &messages, &size)
	for number := range messages {
		message := bytes.Repeat([]byte{byte(number)}, size)
		if err := stream.SendMsg(&message); err != nil {
			return err
		}
	}
	return nil
}

func sum(stream grpc.ServerStream) error  { return added(stream, 0) }
func slow(stream grpc.ServerStream) error { return added(stream, slowGap) }

func added(stream grpc.ServerStream, gap time.Duration) error {
	messages, size := 0, 0
	for {
		request, err := received(stream)
		if err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		messages, size = messages+1, size+len(request)
		time.Sleep(gap)
	}
	answer := fmt.Appendf(nil, "%d %d", messages, size)
	return stream.SendMsg(&answer)
}

func chat(stream grpc.ServerStream) error {
	for {
		message, err := received(stream)
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := stream.SendMsg(&message); err != nil {
			return err
		}
	}
}

func refuse(stream grpc.ServerStream) error {
	request, err := received(stream)
	if err != nil {
		return err
	}
	return refused(stream, codes.AlreadyExists, string(request))
}

func falter(stream grpc.ServerStream) error {
	request, err := received(stream)
	for range faltered {
		if err != nil {
			return err
		}
		err = stream.SendMsg(&request)
	}
	return refused(stream, codes.DataLoss, "after some answers")
}

func halt(stream grpc.ServerStream) error {
	if _, err := received(stream); err != nil {
		return err
	}
	return refused(stream, codes.OutOfRange, "after one request")
}

func refused(stream grpc.ServerStream, code codes.Code, words string) error {
	stream.SetTrailer(metadata.Pairs("grpc-status-details-bin", "\x00\xff", "plain", "words"))
	return status.Error(code, words)
}

func fail(grpc.ServerStream) error { return errors.New("as planned") }

func tell(stream grpc.ServerStream) error {
	if _, err := received(stream); err != nil {
		return err
	}
	given, _ := metadata.FromIncomingContext(stream.Context())
	var lines []string
	for key, values := range given {
		if !strings.HasPrefix(key, "x-") {
			continue
		}
		for _, value := range values {
			if strings.HasSuffix(key, "-bin") {
				value = base64.StdEncoding.EncodeToString([]byte(value))
			}
			lines = append(lines, key+"="+value)
		}
	}
	slices.Sort(lines)
	_, isLimited := stream.Context().Deadline()
	answer := fmt.Appendf(nil, "%v %s", isLimited, strings.Join(lines, "\n"))
	stream.SetHeader(metadata.Pairs("initial", "first", "initial-bin", "\x01"))
	stream.SetTrailer(metadata.Pairs("trailing", "last"))
	return stream.SendMsg(&answer)
}

func who(stream grpc.ServerStream) error {
	if _, err := received(stream); err != nil {
		return err
	}
	answer := []byte("insecure")
	other, _ := peer.FromContext(stream.Context())
	if proven, found := other.AuthInfo.(credentials.TLSInfo); found {
		names := proven.State.PeerCertificates[0].DNSNames
		answer = fmt.Appendf(nil, "%s %s", proven.State.NegotiatedProtocol, strings.Join(names, ","))
	}
	return stream.SendMsg(&answer)
}

func (all *echo) sleep(stream grpc.ServerStream) error {
	select {
	case <-stream.Context().Done():
		all.cancelled.Add(1)
	case <-time.After(sleep):
	}
	return stream.Context().Err()
}

func (all *echo) seen(stream grpc.ServerStream) error {
	request, err := received(stream)
	if err != nil {
		return err
	}
	var least int64
	fmt.Sscan(string(request), &least)
	for all.cancelled.Load() < least {
		time.Sleep(lookAgain)
	}
	return stream.SendMsg(&request)
}

func (all *echo) drain(stream grpc.ServerStream) error {
	answer := []byte("before")
	err := stream.SendMsg(&answer)
	for _, each := range all.servers {
		go each.GracefulStop()
	}
	for number := range drained {
		if err != nil {
			return err
		}
		time.Sleep(drainGap)
		answer = fmt.Appendf(nil, "%d", number)
		err = stream.SendMsg(&answer)
	}
	return err
}

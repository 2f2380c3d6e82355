package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"

	"google.golang.org/grpc"

	sessionsv1 "viewstamp.example/gen/viewstamp/api/sessions/v1"
	submitv1 "viewstamp.example/gen/viewstamp/api/submit/v1"
)

const (
	nonceBytes = 16
	// A session may have so many requests without an answer.
	windowRequests = 8
)

// A Submission sends commands in numbered requests of one session. Each takes effect once, however
// often it is sent and whichever replica leads: a number that the cluster knows gets the same reply.
type Submission struct {
	cluster    *Cluster
	commands   <-chan *submitv1.Span
	answered   func(*submitv1.CommandReply) error
	sessionID  uint64
	clusterID  []byte
	nextNumber uint64
	unanswered []*submitv1.CommandRequest // ascending
	isLast     bool                       // whether no more commands come
}

// Run sends the commands and hands out the replies, until each command has its reply.
func (s *Submission) Run(ctx context.Context) error {
	if err := s.register(ctx); err != nil {
		return err
	}
	for {
		err := s.serve(ctx)
		if err == nil {
			return nil
		}
		if err := s.cluster.Prepare(ctx, err); err != nil {
			return fmt.Errorf("%w; session %d: %d requests have no answer, and may have taken effect",
				err, s.sessionID, len(s.unanswered))
		}
	}
}

// register opens a session. The same nonce in each attempt finds the same session.
func (s *Submission) register(ctx context.Context) error {
	nonce := make([]byte, nonceBytes)
	rand.Read(nonce)
	response, err := Call(ctx, s.cluster,
		func(ctx context.Context, connection *grpc.ClientConn) (*sessionsv1.RegisterSessionResponse, error) {
			request := &sessionsv1.RegisterSessionRequest{Nonce: nonce}
			return sessionsv1.NewSessionsServiceClient(connection).RegisterSession(ctx, request)
		})
	if err != nil {
		return err
	}
	s.sessionID, s.clusterID, s.nextNumber = response.SessionId, response.Header.ClusterId, 1
	return nil
}

// serve sends and receives over one stream. It returns why the stream ended; nil if all is done.
func (s *Submission) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.open(ctx)
	if err != nil {
		return err
	}
	replies := receive(ctx, stream)
	for err == nil && !(s.isLast && len(s.unanswered) == 0) {
		commands := s.commands
		if s.isLast || s.nextNumber > s.acked()+windowRequests {
			commands = nil // nothing is taken before another reply comes
		}
		select {
		case command, more := <-commands:
			if s.isLast = !more; more {
				err = s.send(stream, s.admit(command))
			}
		case reply := <-replies:
			err = s.take(reply)
		}
	}
	return err
}

// open opens a stream and sends everything again that has no answer, under the same numbers.
func (s *Submission) open(ctx context.Context) (submitv1.SubmitService_SubmitClient, error) {
	connection, ctx, err := s.cluster.Connect(ctx)
	if err != nil {
		return nil, err
	}
	stream, err := submitv1.NewSubmitServiceClient(connection).Submit(ctx)
	if err != nil {
		return nil, err
	}
	opening := &submitv1.SubmitRequest_Open{Open: &submitv1.OpenStream{SessionId: s.sessionID}}
	if err := unlessEnded(stream.Send(&submitv1.SubmitRequest{Kind: opening})); err != nil {
		return nil, err
	}
	// Nothing may be sent before the stream is open: until then an older one may still be read.
	response, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(response.GetOpened().GetClusterId(), s.clusterID) {
		return nil, fmt.Errorf("another cluster answers at %s", s.cluster.Address())
	}
	again := []uint64{}
	for _, request := range s.unanswered {
		again = append(again, request.Number)
		if err := s.send(stream, request); err != nil {
			return nil, err
		}
	}
	return stream, tell(map[string]any{"opened": s.cluster.Address(), "sent_again": again})
}

// admit gives a command the next number.
func (s *Submission) admit(command *submitv1.Span) *submitv1.CommandRequest {
	request := &submitv1.CommandRequest{Number: s.nextNumber, Spans: []*submitv1.Span{command}}
	s.nextNumber++
	s.unanswered = append(s.unanswered, request)
	return request
}

// acked returns the number up to which every reply has come.
func (s *Submission) acked() uint64 {
	if len(s.unanswered) > 0 {
		return s.unanswered[0].Number - 1
	}
	return s.nextNumber - 1
}

func (s *Submission) send(stream submitv1.SubmitService_SubmitClient, request *submitv1.CommandRequest) error {
	request.Acked = s.acked()
	command := &submitv1.SubmitRequest_Command{Command: request}
	return unlessEnded(stream.Send(&submitv1.SubmitRequest{Kind: command}))
}

// take hands out the reply to a request. A request that was refused as a whole stays unanswered:
// the refusal says what to do, and the next stream sends the request again.
func (s *Submission) take(received received) error {
	reply := received.response.GetCommand()
	switch {
	case received.err != nil:
		return received.err
	case reply.GetError() != nil:
		return refusalIn(reply.Error)
	}
	s.cluster.Reached()
	for position, request := range s.unanswered {
		if request.Number == reply.GetNumber() {
			s.unanswered = append(s.unanswered[:position:position], s.unanswered[position+1:]...)
			return s.answered(reply)
		}
	}
	return nil // a second copy of a reply that we have
}

// received is a message of a stream, or why there are no more.
type received struct {
	response *submitv1.SubmitResponse
	err      error
}

// receive returns a channel with all that comes until the stream or the context ends.
func receive(ctx context.Context, stream submitv1.SubmitService_SubmitClient) <-chan received {
	messages := make(chan received)
	go func() {
		for {
			response, err := stream.Recv()
			select {
			case messages <- received{response, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return messages
}

// unlessEnded leaves it to Recv to say why a stream has ended that takes nothing more.
func unlessEnded(err error) error {
	if err == io.EOF {
		return nil
	}
	return err
}

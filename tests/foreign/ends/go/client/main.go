// Command client holds conversations with a server: a table on standard input, outcomes on standard
// output, a JSON document on each line.
package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"viewstamp-foreign/raw"
)

const (
	service     = "/test.Echo/"
	serverName  = "server.test"
	patience    = 20 * time.Second
	cancelDelay = 100 * time.Millisecond
)

type conversation struct {
	Name        string            `json:"name"`
	Kind        string            `json:"kind"`
	Path        string            `json:"path"`
	Text        string            `json:"text"`
	Size        int               `json:"size"`
	Count       int               `json:"count"`
	Turns       bool              `json:"turns"`
	Metadata    map[string]string `json:"metadata"`
	DeadlineMs  int               `json:"deadline_ms"`
	CancelAfter *int              `json:"cancel_after"`
	Parallel    int               `json:"parallel"`
	Gzip        bool              `json:"gzip"`
	PauseMs     int               `json:"pause_ms"`
}

type outcome struct {
	Code     int               `json:"code"`
	Details  string            `json:"details"`
	Messages int               `json:"messages"`
	Digest   string            `json:"digest"`
	Initial  map[string]string `json:"initial"`
	Trailing map[string]string `json:"trailing"`
}

func (talk conversation) message() []byte {
	if talk.Size == 0 {
		return []byte(talk.Text)
	}
	made := make([]byte, talk.Size)
	for at := range made {
		made[at] = byte(at % 256)
	}
	return made
}

func (talk conversation) metadata() metadata.MD {
	made := metadata.MD{}
	for key, value := range talk.Metadata {
		if strings.HasSuffix(key, "-bin") {
			raw, _ := base64.StdEncoding.DecodeString(value)
			value = string(raw)
		} else if times, found := strings.CutPrefix(value, "REPEAT "); found {
			number, _ := strconv.Atoi(times)
			value = strings.Repeat("v", number)
		}
		made.Set(key, value)
	}
	return made
}

func told(given metadata.MD) map[string]string {
	kept := map[string]string{}
	for _, key := range []string{"initial", "initial-bin", "trailing", "plain", "grpc-status-details-bin"} {
		for _, value := range given.Get(key) {
			if strings.HasSuffix(key, "-bin") {
				value = base64.StdEncoding.EncodeToString([]byte(value))
			}
			kept[key] = value
		}
	}
	return kept
}

func add(digest hash.Hash, message []byte) {
	var size [4]byte
	binary.BigEndian.PutUint32(size[:], uint32(len(message)))
	digest.Write(size[:])
	digest.Write(message)
}

func hold(connection *grpc.ClientConn, talk conversation) outcome {
	limit := patience
	if talk.DeadlineMs > 0 {
		limit = time.Duration(talk.DeadlineMs) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	ctx = metadata.NewOutgoingContext(ctx, talk.metadata())
	options := []grpc.CallOption{grpc.ForceCodec(raw.Codec{})}
	if talk.Gzip {
		options = append(options, grpc.UseCompressor("gzip"))
	}
	description := &grpc.StreamDesc{
		ServerStreams: talk.Kind == "server" || talk.Kind == "bidi",
		ClientStreams: talk.Kind == "client" || talk.Kind == "bidi",
	}
	digest := sha256.New()
	result := outcome{Initial: map[string]string{}, Trailing: map[string]string{}}
	stream, err := connection.NewStream(ctx, description, service+talk.Path, options...)
	if err == nil {
		err = converse(stream, talk, cancel, digest, &result)
		if header, failed := stream.Header(); failed == nil {
			result.Initial = told(header)
		}
		result.Trailing = told(stream.Trailer())
	}
	if err != nil && err != io.EOF {
		result.Code, result.Details = int(status.Code(err)), status.Convert(err).Message()
	}
	result.Digest = hex.EncodeToString(digest.Sum(nil))
	return result
}

func converse(stream grpc.ClientStream, talk conversation, cancel func(), digest hash.Hash, result *outcome) error {
	message, count := talk.message(), 1
	if talk.Kind == "client" || talk.Kind == "bidi" {
		count = talk.Count
	}
	receive := func() error {
		var answer []byte
		if err := stream.RecvMsg(&answer); err != nil {
			return err
		}
		if talk.CancelAfter != nil && *talk.CancelAfter > 0 && result.Messages >= *talk.CancelAfter {
			return nil // what was in a buffer when it was cancelled
		}
		add(digest, answer)
		result.Messages++
		time.Sleep(time.Duration(talk.PauseMs) * time.Millisecond)
		if talk.CancelAfter != nil && result.Messages == *talk.CancelAfter {
			cancel()
		}
		return nil
	}
	if talk.Turns {
		for range count {
			if err := stream.SendMsg(&message); err != nil {
				break
			}
			if err := receive(); err != nil {
				return err
			}
		}
		stream.CloseSend()
	} else {
		go func() {
			for range count {
				if stream.SendMsg(&message) != nil {
					return // RecvMsg tells why
				}
			}
			stream.CloseSend()
		}()
	}
	if talk.CancelAfter != nil && *talk.CancelAfter == 0 {
		time.AfterFunc(cancelDelay, cancel)
	}
	for {
		if err := receive(); err != nil {
			return err
		}
	}
}

func secured(files []string) credentials.TransportCredentials {
	if len(files) == 0 {
		return insecure.NewCredentials()
	}
	authority, err := os.ReadFile(files[0])
	check(err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority)
	own, err := tls.LoadX509KeyPair(files[1], files[2])
	check(err)
	return credentials.NewTLS(&tls.Config{
		RootCAs: pool, Certificates: []tls.Certificate{own}, ServerName: serverName,
	})
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

func main() {
	connection, err := grpc.NewClient(os.Args[1],
		grpc.WithTransportCredentials(secured(os.Args[2:])),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(raw.BytesMax)))
	check(err)
	output := json.NewEncoder(os.Stdout)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var talk conversation
		check(json.Unmarshal(lines.Bytes(), &talk))
		outcomes := make([]outcome, max(1, talk.Parallel))
		var all sync.WaitGroup
		for at := range outcomes {
			all.Go(func() { outcomes[at] = hold(connection, talk) })
		}
		all.Wait()
		check(output.Encode(map[string]any{"name": talk.Name, "outcomes": outcomes}))
	}
}

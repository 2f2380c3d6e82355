// Command server serves all kinds of calls: it gets the files of an authority, a certificate and a
// key, prints its two addresses, the second one with TLS, and serves until its input ends.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	_ "google.golang.org/grpc/encoding/gzip"

	"viewstamp-foreign/raw"
)

const (
	windowBytes = 64 << 10
	streamsMax  = 100
)

func encrypted(files []string) grpc.ServerOption {
	authority, err := os.ReadFile(files[0])
	check(err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority)
	own, err := tls.LoadX509KeyPair(files[1], files[2])
	check(err)
	return grpc.Creds(credentials.NewTLS(&tls.Config{
		ClientCAs: pool, Certificates: []tls.Certificate{own}, ClientAuth: tls.RequireAndVerifyClientCert,
	}))
}

func listen(all *echo, options ...grpc.ServerOption) string {
	server := grpc.NewServer(append(options,
		grpc.ForceServerCodec(raw.Codec{}),
		grpc.MaxRecvMsgSize(raw.BytesMax),
		grpc.MaxConcurrentStreams(streamsMax),
		grpc.InitialWindowSize(windowBytes),
		grpc.InitialConnWindowSize(windowBytes))...)
	server.RegisterService(all.description(), nil)
	all.servers = append(all.servers, server)
	bound, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	go server.Serve(bound)
	return bound.Addr().String()
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

func main() {
	all := &echo{}
	fmt.Println(listen(all), listen(all, encrypted(os.Args[1:])))
	io.Copy(io.Discard, os.Stdin)
}

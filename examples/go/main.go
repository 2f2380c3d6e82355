// A client of Viewstamp in Go, made from the published protos with stock gRPC.
//
// Each command is an example of its own: `login`, `topology` (topology.go), `watch` (watch.go) and
// `add-partitions` (partitions.go, submission.go). They print a JSON object on each line.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
)

const usage = `usage: example [FLAGS] COMMAND
  login                          log in
  topology STREAM TOPIC...       create what is missing, then list the topics
  watch STREAM FROM_REVISION     print every change of the topics, until Ctrl-C
  add-partitions STREAM TOPIC    add as many partitions as each line of the input says`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "example:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	addresses := flag.String("addresses", "localhost:7400", "all replicas, with commas between")
	username := flag.String("username", "root", "name of the user")
	passwordFile := flag.String("password-file", "data/root_password", "file with the password")
	authority := flag.String("tls-ca", "", "PEM file of the authority; no TLS without it")
	flag.Parse()
	password, err := os.ReadFile(*passwordFile)
	if err != nil {
		return err
	}
	secret := strings.TrimSpace(string(password))
	cluster, err := NewCluster(strings.Split(*addresses, ","), *username, secret, *authority)
	if err != nil {
		return err
	}
	defer cluster.Close()
	return command(ctx, cluster, flag.Args())
}

func command(ctx context.Context, cluster *Cluster, words []string) error {
	switch {
	case len(words) == 1 && words[0] == "login":
		return runLogin(ctx, cluster)
	case len(words) >= 2 && words[0] == "topology":
		return runTopology(ctx, cluster, words[1], words[2:])
	case len(words) == 3 && words[0] == "watch":
		revision, err := strconv.ParseUint(words[2], 10, 64)
		if err != nil || revision == 0 {
			return fmt.Errorf("%q is no revision: they are numbered from 1", words[2])
		}
		return runWatch(ctx, cluster, words[1], revision)
	case len(words) == 3 && words[0] == "add-partitions":
		return runAddPartitions(ctx, cluster, words[1], words[2], bufio.NewScanner(os.Stdin))
	}
	return fmt.Errorf("%q is no command\n%s", words, usage)
}

// tell prints an object as a line of JSON.
func tell(object map[string]any) error {
	return json.NewEncoder(os.Stdout).Encode(object)
}

package main

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	usersv1 "viewstamp.example/gen/viewstamp/api/users/v1"
)

const (
	pauseFirst = 10 * time.Millisecond
	pauseMax   = time.Second
	delayMax   = 30 * time.Second
	// A unary call that has no answer by then counts as failed.
	unaryTimeout = 10 * time.Second
	// Two replicas that are cut off may name each other as the primary for ever.
	hintsInARowMax = 2
)

// A Cluster knows all replicas, the one to call next, and the access token. One goroutine uses it.
type Cluster struct {
	addresses          []string
	username, password string
	security           credentials.TransportCredentials

	position    int    // in addresses
	hint        string // the primary's address, if a replica has just told it
	hintsInARow int
	connection  *grpc.ClientConn
	token       string
	isRenewed   bool // whether the token was renewed since the last success
	pause       time.Duration
}

// NewCluster uses TLS if there is a file with the authority of the replicas' certificates.
func NewCluster(addresses []string, username, password, authority string) (*Cluster, error) {
	security := insecure.NewCredentials()
	if authority != "" {
		var err error
		if security, err = credentials.NewClientTLSFromFile(authority, ""); err != nil {
			return nil, err
		}
	}
	return &Cluster{
		addresses: addresses, username: username, password: password, security: security,
		pause: pauseFirst,
	}, nil
}

// Address returns the address of the replica to call.
func (c *Cluster) Address() string {
	if c.hint != "" {
		return c.hint
	}
	return c.addresses[c.position%len(c.addresses)]
}

// Connect returns a connection to the replica to call, and a context whose metadata identify us.
func (c *Cluster) Connect(ctx context.Context) (*grpc.ClientConn, context.Context, error) {
	if c.connection == nil {
		connection, err := grpc.NewClient(
			c.Address(),
			grpc.WithTransportCredentials(c.security),
			// A replica whose machine is gone closes no connection: its silence ends it.
			grpc.WithKeepaliveParams(keepalive.ClientParameters{
				Time: 10 * time.Second, Timeout: 5 * time.Second,
			}),
		)
		if err != nil {
			return nil, nil, err
		}
		c.connection = connection
	}
	if c.token == "" {
		response, err := c.logIn(ctx)
		if err != nil {
			return nil, nil, err
		}
		c.token = response.AccessToken
	}
	return c.connection, metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.token), nil
}

func (c *Cluster) logIn(ctx context.Context) (*usersv1.LoginResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, unaryTimeout)
	defer cancel()
	request := &usersv1.LoginRequest{Username: c.username, Password: c.password}
	return usersv1.NewUsersServiceClient(c.connection).Login(ctx, request)
}

// Prepare does what an error asks for before the next attempt. It returns an error that is final.
func (c *Cluster) Prepare(ctx context.Context, err error) error {
	refusal := refusalOf(err)
	switch refusal.verdict {
	case Retry, Reconnect:
		c.moveOn(refusal.Details["address"])
	case Reopen:
		// The same replica, after a pause.
	case Renew:
		if c.isRenewed {
			return refusal
		}
		c.token, c.isRenewed = "", true
	default:
		return refusal
	}
	return c.sleep(ctx, min(refusal.Delay(), delayMax))
}

// Reached notes that a replica has served us.
func (c *Cluster) Reached() {
	c.hintsInARow, c.isRenewed, c.pause = 0, false, pauseFirst
}

// Close closes the connection; the next call opens another one.
func (c *Cluster) Close() {
	if c.connection != nil {
		c.connection.Close()
		c.connection = nil
	}
}

// moveOn goes to the replica that is said to be the primary, or to the next one of the list.
func (c *Cluster) moveOn(hint string) {
	c.Close()
	if hint != "" && c.hintsInARow < hintsInARowMax {
		c.hint = hint
		c.hintsInARow++
		return
	}
	c.position, c.hint, c.hintsInARow = c.position+1, "", 0
}

// sleep waits for as long as it was told and a little more, so that clients do not return together.
func (c *Cluster) sleep(ctx context.Context, told time.Duration) error {
	pause := told + c.pause/2 + rand.N(c.pause/2)
	c.pause = min(2*c.pause, pauseMax)
	select {
	case <-time.After(pause):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Call makes a unary call, again and again for as long as a refusal allows that.
//
// A connection that breaks hides whether a command took effect. So use it for reads, and for
// commands that may be repeated. Submission repeats any command.
func Call[Response any](
	ctx context.Context,
	cluster *Cluster,
	call func(context.Context, *grpc.ClientConn) (Response, error),
) (Response, error) {
	for {
		response, err := callOnce(ctx, cluster, call)
		if err == nil {
			cluster.Reached()
			return response, nil
		}
		if err := cluster.Prepare(ctx, err); err != nil {
			return response, err
		}
	}
}

func callOnce[Response any](
	ctx context.Context,
	cluster *Cluster,
	call func(context.Context, *grpc.ClientConn) (Response, error),
) (response Response, err error) {
	connection, ctx, err := cluster.Connect(ctx)
	if err != nil {
		return response, err
	}
	ctx, cancel := context.WithTimeout(ctx, unaryTimeout)
	defer cancel()
	return call(ctx, connection)
}

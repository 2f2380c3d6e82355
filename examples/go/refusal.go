package main

import (
	"errors"
	"io"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	errorsv1 "viewstamp.example/gen/viewstamp/api/errors/v1"
)

// A Verdict says what to do about a refusal.
type Verdict int

const (
	Final     Verdict = iota // tell the caller
	Retry                    // send the same again, a little later
	Reconnect                // send the same again, to another replica
	Reopen                   // send the same again, over a new stream to the same replica
	Renew                    // log in again, then send the same
	Ended                    // the session is over
	Lost                     // the answer is gone: nobody can say what happened
)

// verdicts is the table of docs/other-languages.md. Reasons that are not listed are final.
var verdicts = map[string]Verdict{
	"NOT_PRIMARY":           Reconnect,
	"VIEW_CHANGE":           Retry,
	"DOMAIN_RESTARTING":     Retry,
	"NO_QUORUM":             Retry,
	"OVERLOADED":            Retry,
	"QUOTA_EXCEEDED":        Retry,
	"OUTCOME_UNKNOWN":       Retry,
	"REQUEST_GAP":           Retry,
	"STREAM_REPLACED":       Reopen,
	"ACCESS_CHANGED":        Reopen,
	"UNAUTHENTICATED":       Renew,
	"SESSION_EVICTED":       Ended,
	"REQUEST_NUMBER_REUSED": Lost,
	"REQUEST_TOO_OLD":       Lost,
}

// A Refusal is an error of the cluster: a reason for programs, a message for people, and the names
// and numbers that the message mentions.
type Refusal struct {
	Reason  string // empty if no replica said it: the connection broke
	Message string
	Details map[string]string
	verdict Verdict
}

func (r *Refusal) Error() string { return r.Reason + ": " + r.Message }

// Delay returns how long the cluster asks to wait before the next attempt.
func (r *Refusal) Delay() time.Duration {
	milliseconds, _ := strconv.Atoi(r.Details["retry_delay_ms"]) // 0 if it says nothing
	return time.Duration(milliseconds) * time.Millisecond
}

func newRefusal(reason, message string, details map[string]string) *Refusal {
	refusal := &Refusal{reason, message, details, verdicts[reason]}
	if _, lags := details["last_applied"]; lags {
		refusal.verdict = Retry // the replica will catch up with what another one has answered
	}
	return refusal
}

// refusalOf returns why a call failed: the google.rpc.ErrorInfo in its status.
func refusalOf(err error) *Refusal {
	var refusal *Refusal
	if errors.As(err, &refusal) {
		return refusal
	}
	told := status.Convert(err)
	for _, detail := range told.Details() {
		info, ok := detail.(*errdetails.ErrorInfo)
		if ok && info.Domain == "viewstamp" {
			return newRefusal(info.Reason, told.Message(), info.Metadata)
		}
	}
	broken := &Refusal{Message: err.Error()}
	if told.Code() == codes.Unavailable || errors.Is(err, io.EOF) {
		broken.verdict = Reconnect // nobody is there, or the connection broke
	}
	return broken
}

// refusalIn returns the refusal that a reply carries among its results.
func refusalIn(refused *errorsv1.Error) *Refusal {
	details := map[string]string{}
	for _, detail := range refused.Details {
		details[detail.Key] = detail.Value
	}
	reason := refused.Reason.String()[len("REASON_"):]
	return newRefusal(reason, refused.Message, details)
}

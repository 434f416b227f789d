package outbox

import (
	"context"
	"encoding/json"
	"errors"
)

// Publisher forwards events to a broker. The topics that publish say so in the YAML; dispatchers and listeners call it
// in place of a handler.
type Publisher interface {
	// Publish sends events and returns an error for each, in their order: nil once the broker has it for good.
	//
	// What an error is decides what becomes of its event: Permanent makes it a dead letter at once, RetryAfter has it
	// tried again after a delay, Unavailable hands it back with its attempt uncounted and pauses the publisher,
	// ErrBehind hands it back likewise because an earlier event with its key failed; any other is a failed attempt.
	//
	// Events with the same non-empty Key are in order, and are to reach the broker in that order: when one of them
	// fails, Publish sends none of those behind it and returns ErrBehind for them. When ctx ends it returns as soon
	// as it can; what may have been sent, or not, is an ordinary error. It keeps none of events. It is called from
	// several goroutines at once, never with one key in two of them.
	Publish(ctx context.Context, events []Outgoing) []error
}

// Outgoing is an event on its way to a broker.
type Outgoing struct {
	Event
	Payload json.RawMessage
	// Destination is the broker's name for where it goes: a Kafka topic, a NATS subject, the name of a webhook.
	Destination string
	// Key keeps events in order at the broker; "" means none.
	Key string
}

// ErrBehind: an event was not sent, because an earlier one with its key has failed.
var ErrBehind = errors.New("not sent: an earlier event with its key failed")

type unavailableError struct{ err error }

func (e *unavailableError) Error() string { return e.err.Error() }
func (e *unavailableError) Unwrap() error { return e.err }

// Unavailable marks err, returned by a Publisher, as trouble of the broker and not of the event: the event is handed
// back, its attempt uncounted, and the publisher is paused with growing back-off. Unavailable(nil) is nil.
func Unavailable(err error) error {
	if err == nil {
		return nil
	}
	return &unavailableError{err: err}
}

// IsUnavailable reports whether err was marked by Unavailable.
func IsUnavailable(err error) bool {
	var u *unavailableError
	return errors.As(err, &u)
}

// IsPermanent reports whether err was marked by Permanent.
func IsPermanent(err error) bool { return isPermanent(err) }

package consume

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/payload"
)

// The reasons why an event was not consumed. Test for them with errors.Is; the *Error around them names the event. None
// of them carries a value of a payload.
var (
	// ErrMalformed: the message is neither a CloudEvent of a topic nor JSON with outbox headers, or one of its attributes
	// is not valid.
	ErrMalformed = errors.New("malformed message")
	// ErrUnknownTopic: the consumer does not know the topic. It may be for another consumer, or newer than this one.
	ErrUnknownTopic = errors.New("unknown topic")
	// ErrUnknownVersion: the payload has a newer version than the consumer knows.
	ErrUnknownVersion = errors.New("unknown payload version")
	// ErrInvalidPayload: the payload does not decode, lacks a required field or, with a strict consumer, breaks a rule of
	// the YAML. Broken rules are a *payload.ValidationError, which lists all of them.
	ErrInvalidPayload = payload.ErrInvalid
	// ErrUnimplemented: the consumer has no code for the topic yet.
	ErrUnimplemented = errors.New("consumer is not implemented")
)

// Error says which event was not consumed, and why. Facts that are not known are zero.
type Error struct {
	Topic   string // "users/user_created", or the type of an event that belongs to no topic
	Version int    // of the payload
	EventID uuid.UUID
	// Field is the path of the faulty field in the payload, or the name of the faulty attribute or header.
	Field string
	Err   error // why; never nil
}

// Error names the event and the cause in one line.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("consume")
	if e.Topic != "" {
		b.WriteString(" " + show(e.Topic))
	} else {
		b.WriteString(" message")
	}
	if e.Version != 0 {
		b.WriteString(" version " + strconv.Itoa(e.Version))
	}
	if e.EventID != uuid.Nil {
		b.WriteString(", event " + e.EventID.String())
	}
	return b.String() + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// about returns an *Error with what is known about e and a cause.
func about(e *Event, field string, err error) error {
	topic := e.Namespace
	if e.Topic != "" {
		topic += "/" + e.Topic
	}
	topic = cmp.Or(topic, e.Type)
	return &Error{Topic: topic, Version: e.Version, EventID: e.ID, Field: field, Err: err}
}

func malformed(e *Event, field, fault string) error {
	if field != "" {
		fault = field + " " + fault
	}
	return about(e, field, fmt.Errorf("%s: %w", fault, ErrMalformed))
}

func invalid(e *Event, field, fault string) error {
	text := "payload " + fault
	if field != "" {
		text = "field " + field + " " + fault
	}
	return about(e, field, fmt.Errorf("%s: %w", text, ErrInvalidPayload))
}

// show returns a name as it is. If it is long or has unusual characters, show cuts and quotes it.
func show(name string) string {
	const longest = 100
	if len(name) > longest {
		name = strings.ToValidUTF8(name[:longest], "") + "..."
	}
	if quoted := strconv.Quote(name); quoted[1:len(quoted)-1] != name || strings.ContainsAny(name, " :") {
		return quoted
	}
	return name
}

// Permanent marks an error that a consumer's method returns as permanent: trying again cannot help. Permanent(nil) is
// nil.
func Permanent(err error) error {
	return errclass.Permanent(err)
}

// RetryAfter marks an error that a consumer's method returns with the delay of the next attempt. RetryAfter(d, nil) is
// nil. It has a meaning for package receive and those built on it.
func RetryAfter(d time.Duration, err error) error {
	return errclass.RetryAfter(d, err)
}

// Unavailable marks an error that a consumer's method returns: what the method needs is unavailable, and the message is
// not at fault. No attempt is counted, and the messages wait. Unavailable(nil) is nil. It has a meaning for package
// receive and those built on it.
func Unavailable(err error) error {
	return errclass.Unavailable(err, false)
}

// IsPermanent reports whether the same message would fail again however often this consumer tries it. That is so for an
// error marked by Permanent, for the Err variables of this package, and for inbox.ErrInvalidEvent and inbox.ErrStale.
// Quarantine such a message and continue. A newer version of the consumer may be able to handle ErrUnknownTopic,
// ErrUnknownVersion and ErrUnimplemented. All other errors, for example of the database, may pass: try again after a
// pause.
func IsPermanent(err error) bool {
	if errclass.IsPermanent(err) {
		return true
	}
	for _, cause := range [...]error{
		ErrMalformed, ErrUnknownTopic, ErrUnknownVersion, ErrInvalidPayload, ErrUnimplemented, inbox.ErrInvalidEvent,
		inbox.ErrStale,
	} {
		if errors.Is(err, cause) {
			return true
		}
	}
	return false
}

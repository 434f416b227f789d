package consume

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/mark"
	"github.com/outboxgen/outboxgen/payload"
)

// Why an event was not consumed: conditions that callers branch on with errors.Is. An *Error around them has the facts.
// None of them ever carries a value of a payload.
var (
	// ErrMalformed: a message is neither a CloudEvent of a topic nor JSON with outbox headers, or one of its attributes
	// is not what it must be.
	ErrMalformed = errors.New("malformed message")
	// ErrUnknownTopic: the consumer does not know the topic. It may be for another consumer, or newer than this one.
	ErrUnknownTopic = errors.New("unknown topic")
	// ErrUnknownVersion: the payload is of a newer version than the consumer knows.
	ErrUnknownVersion = errors.New("unknown payload version")
	// ErrInvalidPayload: the payload does not decode or lacks a required field or, for a strict consumer, breaks a rule of
	// the YAML. A broken rule is a *payload.ValidationError, which lists them all.
	ErrInvalidPayload = payload.ErrInvalid
	// ErrUnimplemented: nobody consumes the topic yet.
	ErrUnimplemented = errors.New("consumer is not implemented")
)

// Error says which event was not consumed, and why. What is not known of it is zero.
type Error struct {
	Topic   string // "users/user_created", or the type of an event that is none of ours
	Version int    // of the payload
	EventID uuid.UUID
	// Field is the path of the payload's field that is at fault, or the name of the message's attribute or header.
	Field string
	Err   error
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

// about returns what is known of e, with a cause.
func about(e *Event, field string, err error) error {
	topic := e.Namespace
	if e.Topic != "" {
		topic += "/" + e.Topic
	}
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

// show returns a name as it is when it looks like one, else quoted and cut.
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

// Permanent marks err, returned by a method of a consumer, as one that no retry will mend. Permanent(nil) is nil.
func Permanent(err error) error {
	return mark.Permanent(err)
}

// IsPermanent reports whether err is one that the same message will meet again however often it is tried, by this
// consumer: one marked by Permanent, one of the errors above, or an event that the inbox refuses. Put such a message
// aside and go on. A newer consumer may know what to do with ErrUnknownTopic, ErrUnknownVersion and ErrUnimplemented.
// All other errors, of the database for example, may pass: try again, with a pause.
func IsPermanent(err error) bool {
	if mark.IsPermanent(err) {
		return true
	}
	for _, cause := range [...]error{
		ErrMalformed, ErrUnknownTopic, ErrUnknownVersion, ErrInvalidPayload, ErrUnimplemented, inbox.ErrInvalidEvent, inbox.ErrStale,
	} {
		if errors.Is(err, cause) {
			return true
		}
	}
	return false
}

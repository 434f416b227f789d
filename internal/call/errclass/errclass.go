// Package errclass defines what an error means for its event: the marks that handlers and publishers put on errors, and
// the results of classifying errors. An error is classified once, where user code has returned it.
package errclass

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/call/backoff"
	"github.com/outboxgen/outboxgen/internal/call/errtext"
	"github.com/outboxgen/outboxgen/internal/call/usercode"
)

// MaxBytes is how many bytes of an error an event keeps.
const MaxBytes = 2048

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// Permanent marks err as one that no retry will fix. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err: err}
}

// IsPermanent reports whether err was marked by Permanent.
func IsPermanent(err error) bool {
	var p *permanentError
	return errors.As(err, &p)
}

type retryAfterError struct {
	err   error
	delay time.Duration
}

func (e *retryAfterError) Error() string { return e.err.Error() }
func (e *retryAfterError) Unwrap() error { return e.err }

// RetryAfter marks err with the delay of the next attempt, zero if it is negative. RetryAfter(d, nil) is nil.
func RetryAfter(d time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &retryAfterError{err: err, delay: max(d, 0)}
}

type unavailableError struct {
	err    error
	broker bool // the whole broker is unavailable
}

func (e *unavailableError) Error() string { return e.err.Error() }
func (e *unavailableError) Unwrap() error { return e.err }

// Unavailable marks err: the target, or its whole broker, is unavailable. Unavailable(nil, broker) is nil.
func Unavailable(err error, broker bool) error {
	if err == nil {
		return nil
	}
	return &unavailableError{err: err, broker: broker}
}

// IsUnavailable reports whether err was marked by Unavailable, and whether the outermost mark is the whole broker's.
func IsUnavailable(err error) (is, broker bool) {
	var u *unavailableError
	is = errors.As(err, &u)
	return is, is && u.broker
}

type waitError struct{ err error }

func (e *waitError) Error() string { return e.err.Error() }
func (e *waitError) Unwrap() error { return e.err }

// Wait marks err: something that the event alone needs is not there yet. The event waits, with its attempt uncounted,
// and no other event waits with it in a queue. Wait(nil) is nil.
func Wait(err error) error {
	if err == nil {
		return nil
	}
	return &waitError{err: err}
}

// Errors for errors.Is that say why an event was not handled or sent.
var (
	// ErrBehind: not sent, because an earlier event of its key failed.
	ErrBehind = errors.New("not sent: an earlier event with its key failed")
	// ErrNotSent: certainly not sent, and the event is not at fault.
	ErrNotSent = errors.New("not sent")
	// ErrUnimplemented: no handler has been written.
	ErrUnimplemented = errors.New("handler is not implemented")
)

// Class is what an error says about its event and the event's target.
type Class int

const (
	ClassDone        Class = iota
	ClassFailed            // this attempt
	ClassRefused           // permanently: no later attempt can succeed
	ClassUnavailable       // the topic or destination is unavailable, and the event is not at fault
	ClassNotSent           // nothing was tried, and the event is not at fault
)

// Charged reports whether an attempt of this class counts.
func (c Class) Charged() bool { return c == ClassFailed || c == ClassRefused }

// Result is the result of a call of user code, without the error itself. Code with a Result need not call the methods
// of the error, which are user code too.
type Result struct {
	Class    Class
	Text     string         // what last_error keeps
	After    *time.Duration // the delay of RetryAfter
	Broker   bool           // unavailable, like the whole broker
	Unwanted bool           // unavailable because no handler is written
	Behind   bool           // not sent, because an earlier event of its key failed
	Waits    bool           // not tried, because something that it needs is not there yet
}

// Of classifies err.
func Of(err error) Result { return All([]error{err})[0] }

// All classifies errs. Their methods are user code too, and are called only here. If a method panics, ends its
// goroutine or hangs, its error counts as an ordinary failure.
func All(errs []error) []Result {
	results := make([]Result, len(errs))
	var open []int
	for i, err := range errs {
		if err != nil {
			open = append(open, i)
		}
	}
	if len(open) == 0 {
		return results
	}
	troubles := usercode.Each("error", len(open), usercode.Limit, func(n int) (func(), error) {
		err := errs[open[n]]
		r := Result{Class: ClassFailed}
		text := ""
		trouble := errtext.Join(
			usercode.Recover("its method Error", func() error {
				text = err.Error()
				return nil
			}),
			usercode.Recover("asked what it is, it", func() error {
				r = classify(err)
				return nil
			}))
		if trouble != nil {
			text = strings.TrimPrefix(text+"; "+trouble.Error(), "; ")
		}
		r.Text = Text(text)
		return func() { results[open[n]] = r }, nil
	})
	for n, trouble := range troubles {
		if trouble != nil {
			results[open[n]] = New(ClassFailed, "the returned %s", trouble)
		}
	}
	return results
}

// classify reads the marks of err. Permanent takes precedence over the other marks, and any mark over none.
func classify(err error) (r Result) {
	r.Class = ClassFailed
	var after *retryAfterError
	if errors.As(err, &after) {
		r.After = &after.delay
	}
	away, broker := IsUnavailable(err)
	var wait *waitError
	switch {
	case IsPermanent(err):
		r.Class = ClassRefused
	case errors.As(err, &wait):
		r.Class, r.Waits = ClassNotSent, true
	case away:
		r.Class, r.Broker = ClassUnavailable, broker
	case errors.Is(err, ErrUnimplemented):
		r.Class, r.Unwanted = ClassUnavailable, true
	case errors.Is(err, ErrBehind):
		r.Class, r.Behind = ClassNotSent, true
	case errors.Is(err, ErrNotSent):
		r.Class = ClassNotSent
	}
	return r
}

// Marked reports whether err says what it means: it was marked, or it is one of the errors that say why an event was
// not handled.
func Marked(err error) bool {
	r := classify(err)
	return r.Class != ClassFailed || r.After != nil
}

// Delay returns how long after a failed attempt the next one is due. attempt counts from 1. The delay grows
// exponentially from base to limit, unless the error has its own delay.
func (r Result) Delay(base, limit time.Duration, attempt int) time.Duration {
	return r.DelayBy(nil, base, limit, attempt)
}

// DelayBy is Delay with a source of jitter.
func (r Result) DelayBy(random backoff.Random, base, limit time.Duration, attempt int) time.Duration {
	if r.After != nil {
		return *r.After
	}
	return random.Delay(base, limit, attempt)
}

// New returns a result that does not come from an error.
func New(c Class, format string, args ...any) Result {
	return Result{Class: c, Text: Text(fmt.Sprintf(format, args...))}
}

// Text returns text in the form that last_error keeps: UTF-8 without NUL, cut at MaxBytes.
func Text(text string) string {
	if len(text) > MaxBytes {
		end := MaxBytes
		for !utf8.RuneStart(text[end]) && end > MaxBytes-utf8.UTFMax { // not in the middle of a rune
			end--
		}
		text = text[:end]
	}
	return strings.ReplaceAll(strings.ToValidUTF8(text, "?"), "\x00", "?")
}

// EncodingOf returns the encoding of the database of conn.
func EncodingOf(conn *pgx.Conn) string { return conn.PgConn().ParameterStatus("server_encoding") }

// Storable returns text in a form that a database with that encoding can store, at most MaxBytes long. A character that
// the encoding does not have, or may not have, is written as a Go escape, for example \u65e5.
func Storable(text, encoding string) string {
	limit := rune(unicode.MaxASCII) // which every encoding has
	switch encoding {
	case "UTF8", "SQL_ASCII", "":
		return text
	case "LATIN1":
		limit = unicode.MaxLatin1
	}
	var b strings.Builder
	for _, r := range text {
		piece := string(r)
		if r > limit {
			piece = strings.Trim(strconv.QuoteRuneToASCII(r), "'")
		}
		if b.Len()+len(piece) > MaxBytes {
			break
		}
		b.WriteString(piece)
	}
	return b.String()
}

// IsAway reports whether a SQLSTATE says that PostgreSQL cannot serve the connection: it says nothing about the
// statement.
func IsAway(code string) bool {
	return strings.HasPrefix(code, "08") || // the connection
		strings.HasPrefix(code, "53") || // resources
		strings.HasPrefix(code, "57P") // a shutdown
}

package outbox

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// maxErrorBytes is how much of an error an event keeps.
const maxErrorBytes = 2048

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// Permanent marks err, returned by a handler, as one that no retry will mend: the event becomes a dead
// letter at once. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err: err}
}

type retryAfterError struct {
	err   error
	delay time.Duration
}

func (e *retryAfterError) Error() string { return e.err.Error() }
func (e *retryAfterError) Unwrap() error { return e.err }

// RetryAfter marks err, returned by a handler, with the delay of the next attempt, in place of the topic's
// back-off; a negative delay counts as zero. It still uses up an attempt. RetryAfter(d, nil) is nil.
func RetryAfter(d time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &retryAfterError{err: err, delay: max(d, 0)}
}

func isPermanent(err error) bool {
	return survive(false, func() bool {
		var p *permanentError
		return errors.As(err, &p)
	})
}

// survive runs a method of a user's error, which may panic: that of a typed nil pointer, for example.
func survive[T any](otherwise T, call func() T) (result T) {
	defer func() {
		if recover() != nil {
			result = otherwise
		}
	}()
	return call()
}

// retryDelay returns how long after a failed attempt, counted from 1, the next is due.
func retryDelay(err error, r Retry, attempt int) time.Duration {
	after := survive(nil, func() (after *retryAfterError) {
		errors.As(err, &after)
		return after
	})
	if after != nil {
		return after.delay
	}
	return backoff(r.BaseDelay, r.MaxDelay, attempt)
}

// backoff is exponential with equal jitter: min(base*2^(attempt-1), limit), then uniform in its upper half
// (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).
func backoff(base, limit time.Duration, attempt int) time.Duration {
	delay := limit
	if shift := max(attempt, 1) - 1; shift < 63 && base <= limit>>shift {
		delay = base << shift
	}
	return delay/2 + rand.N(delay-delay/2+1)
}

// errorText returns what last_error keeps of err: UTF-8 without NUL, cut at maxErrorBytes.
func errorText(err error) string {
	if err == nil {
		return "no error given"
	}
	text := survive("the error panicked when it was asked for its text", err.Error)
	if len(text) > maxErrorBytes {
		text = text[:maxErrorBytes]
		for len(text) > 0 { // not in the middle of a rune
			if r, size := utf8.DecodeLastRuneInString(text); r != utf8.RuneError || size > 1 {
				break
			} else if len(text) < maxErrorBytes-utf8.UTFMax {
				break
			}
			text = text[:len(text)-1]
		}
	}
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "?"), "\x00", "?")
	return text
}

// encodingOf returns the encoding of the database of conn.
func encodingOf(conn *pgx.Conn) string { return conn.PgConn().ParameterStatus("server_encoding") }

// storable returns text, of maxErrorBytes at most, as a database with that encoding can keep it: a character that it does
// not have, or may not have, is written as Go escapes it, \u65e5 for example.
func storable(text, encoding string) string {
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
		if b.Len()+len(piece) > maxErrorBytes {
			break
		}
		b.WriteString(piece)
	}
	return b.String()
}

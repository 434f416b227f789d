package outbox

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/backoff"
	"github.com/outboxgen/outboxgen/internal/guard"
)

// maxErrorBytes is how much of an error an event keeps.
const maxErrorBytes = 2048

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// Permanent marks err, returned by a handler, as one that no retry will fix: the event becomes a dead letter
// immediately. Permanent(nil) is nil.
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

// IsPermanent reports whether err was marked by Permanent.
func IsPermanent(err error) bool {
	var p *permanentError
	return errors.As(err, &p)
}

// class is what an error says of its event and of where the event goes.
type class int

const (
	classDone        class = iota
	classFailed            // this attempt
	classRefused           // permanently: no later attempt can succeed
	classUnavailable       // the topic or destination is away, and the event is not to blame
	classNotSent           // nothing was tried, and the event is not to blame
)

// charged tells whether the attempt counts.
func (c class) charged() bool { return c == classFailed || c == classRefused }

// result is what a call of foreign code came to, in our own words: whoever has a result need not ask the error again,
// whose methods are foreign code, too.
type result struct {
	class    class
	text     string         // what last_error keeps
	after    *time.Duration // asked for by RetryAfter
	broker   bool           // unavailable, and with it the whole broker
	unwanted bool           // unavailable, because no handler is written
	behind   bool           // not sent, because an event in front of it failed
}

// resultOf classifies err.
func resultOf(err error) result { return resultsOf([]error{err})[0] }

// resultsOf classifies errs. Their methods are foreign code, too: they are asked here and nowhere else, and one that
// panics, ends its goroutine or hangs makes its error a failure like any other.
func resultsOf(errs []error) []result {
	results := make([]result, len(errs))
	var open []int
	for i, err := range errs {
		if err != nil {
			open = append(open, i)
		}
	}
	troubles := guard.Each("error", len(open), guard.Limit, func(n int) (func(), error) {
		err := errs[open[n]]
		r := result{class: classFailed}
		text := ""
		trouble := errors.Join(
			guard.Recover("its method Error", func() error {
				text = err.Error()
				return nil
			}),
			guard.Recover("asked what it is, it", func() error {
				r = classify(err)
				return nil
			}))
		if trouble != nil {
			text = strings.TrimPrefix(text+"; "+trouble.Error(), "; ")
		}
		r.text = cleanText(text)
		return func() { results[open[n]] = r }, nil
	})
	for n, trouble := range troubles {
		if trouble != nil {
			results[open[n]] = failure(classFailed, "the returned %s", trouble)
		}
	}
	return results
}

// classify reads the marks of err. Permanent wins over the others, and any mark over none.
func classify(err error) (r result) {
	r.class = classFailed
	var after *retryAfterError
	if errors.As(err, &after) {
		r.after = &after.delay
	}
	var away *unavailableError
	switch {
	case IsPermanent(err):
		r.class = classRefused
	case errors.As(err, &away):
		r.class, r.broker = classUnavailable, away.broker
	case errors.Is(err, ErrUnimplemented):
		r.class, r.unwanted = classUnavailable, true
	case errors.Is(err, ErrBehind):
		r.class, r.behind = classNotSent, true
	case errors.Is(err, ErrNotSent):
		r.class = classNotSent
	}
	return r
}

// delay returns how long after the failed attempt, counted from 1, the next is due.
func (r result) delay(retry Retry, attempt int) time.Duration {
	if r.after != nil {
		return *r.after
	}
	return backoff.Delay(retry.BaseDelay, retry.MaxDelay, attempt)
}

// failure returns a result of our own making.
func failure(c class, format string, args ...any) result {
	return result{class: c, text: cleanText(fmt.Sprintf(format, args...))}
}

// cleanText returns text as last_error keeps it: UTF-8 without NUL, cut at maxErrorBytes.
func cleanText(text string) string {
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
	return strings.ReplaceAll(strings.ToValidUTF8(text, "?"), "\x00", "?")
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

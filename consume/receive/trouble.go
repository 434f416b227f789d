package receive

import (
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/internal/call/errclass"
)

// effectError is an error of a consumer's method, or one that it has caused.
type effectError struct{ err error }

func (e *effectError) Error() string { return e.err.Error() }
func (e *effectError) Unwrap() error { return e.err }

// lostError is an error of the database that is not about a message.
type lostError struct {
	err    error
	effect bool // it came while a method ran
}

func (e *lostError) Error() string { return e.err.Error() }
func (e *lostError) Unwrap() error { return e.err }

var errLost = errors.New("the connection to the database was lost")

// cmpErr returns err, or an error that says that the connection was lost.
func cmpErr(err error) error {
	if err == nil {
		return errLost
	}
	return err
}

// lost marks an error of one of our statements as not about a message, if the connection is gone.
func lost(tx pgx.Tx, err error) error {
	if tx.Conn().IsClosed() {
		return &lostError{err, false}
	}
	return err
}

// trouble is what an error means.
type trouble struct {
	class  troubleClass
	effect bool // a method of the consumer has failed, so it may be the message after all
	err    error
	after  *time.Duration // of consume.RetryAfter
}

type troubleClass int

const (
	troubleFailed    troubleClass = iota // the message has failed
	troublePermanent                     // and will always fail
	troubleAway                          // the database or a target does not answer
	troubleCollided                      // another transaction was in the way
)

// troubleOf classifies an error of attempt.
func troubleOf(err error) trouble {
	t := trouble{err: err}
	result := errclass.Of(err)
	t.after = result.After
	_, effect := as[*effectError](err)
	gone, isGone := as[*lostError](err)
	t.effect = effect || isGone && gone.effect
	switch {
	case consume.IsPermanent(err):
		t.class = troublePermanent
	case result.Class == errclass.ClassUnavailable, result.Class == errclass.ClassNotSent:
		t.class, t.effect = troubleAway, false
	default:
		t.class = classOf(err)
		if !effect && t.class == troubleFailed {
			// a lost connection, or our own statement: the database is not migrated, read-only, or the like
			t.class = troubleAway
		}
	}
	return t
}

// classOf classifies an error of PostgreSQL by its code.
func classOf(err error) troubleClass {
	pg, is := as[*pgconn.PgError](err)
	if !is {
		return troubleFailed
	}
	switch pg.Code {
	case "40001", "40P01", "55P03":
		return troubleCollided
	case "25006": // read-only: the server is a standby
		return troubleAway
	}
	if errclass.IsAway(pg.Code) || strings.HasPrefix(pg.Code, "58") { // the system
		return troubleAway
	}
	return troubleFailed
}

// as is errors.As that returns what it has found.
func as[E error](err error) (found E, is bool) {
	is = errors.As(err, &found)
	return found, is
}

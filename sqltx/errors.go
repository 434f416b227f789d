package sqltx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"strings"
)

// errNoColumns is the error of a driver that did not run a statement: each statement of outbox returns columns.
var errNoColumns = errors.New("the statement returned no columns")

// drivers are the packages of the drivers that Wrap supports.
var drivers = [...]string{"github.com/jackc/pgx/", "github.com/lib/pq", "github.com/uptrace/bun/driver/pgdriver"}

// explain returns the error of a statement in words that say what to do.
func (w *wrapped) explain(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, sql.ErrTxDone) {
		return fmt.Errorf("nothing was sent: %w", err)
	}
	var fields interface{ Field(byte) string } // of the driver of bun, whose errors have no SQLState
	if errors.As(err, &fields) && fields.Field('C') != "" {
		return &stateError{err, fields.Field('C')}
	}
	if ended := ctx.Err(); ended != nil {
		if errors.Is(err, ended) {
			return err
		}
		// lib/pq says that the statement was cancelled, pgdriver that a read took too long
		return fmt.Errorf("%w: %w", ended, err)
	}
	what := w.driver()
	if isPostgreSQL(err) || isLost(err) || isSupported(what) {
		return err
	}
	if what == "" {
		what = fmt.Sprintf("a %T", w.tx)
	} else {
		what = "of driver " + what
	}
	return fmt.Errorf("the transaction is %s, and sqltx supports PostgreSQL with pgx/stdlib, lib/pq or pgdriver: %w",
		what, err)
}

// stateError is an error of PostgreSQL with its SQLSTATE.
type stateError struct {
	error
	state string
}

func (e *stateError) SQLState() string { return e.state }
func (e *stateError) Unwrap() error    { return e.error }

// isPostgreSQL reports whether err comes from PostgreSQL, or from a driver that is supported, perhaps inside another
// one.
func isPostgreSQL(err error) bool {
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return true
	}
	for ; err != nil; err = errors.Unwrap(err) {
		if isSupported(packageOf(reflect.TypeOf(err))) {
			return true
		}
	}
	return false
}

// isLost reports whether err says that the connection is gone.
func isLost(err error) bool {
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

func isSupported(name string) bool {
	for _, d := range drivers {
		if strings.HasPrefix(name, d) {
			return true
		}
	}
	return false
}

// driver returns the package of the driver of w. database/sql does not tell it, so that it is looked for in a field of
// sql.Tx. If it is not found, driver returns "".
func (w *wrapped) driver() string {
	if plain, ok := w.sender.(*sql.Tx); ok {
		if v := reflect.ValueOf(plain).Elem().FieldByName("txi"); v.IsValid() && v.Kind() == reflect.Interface && !v.IsNil() {
			return packageOf(v.Elem().Type())
		}
	}
	return ""
}

func packageOf(t reflect.Type) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.PkgPath()
}

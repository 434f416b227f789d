package sqltx_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxfake"
	"github.com/outboxgen/outboxgen/sqltx"
)

var message = outbox.Message{Namespace: "shop", Topic: "placed", DedupeKey: "1", Payload: []byte(`{"secret": 1}`)}

// ways are the ways to enqueue with a transaction.
var ways = map[string]func(context.Context, outbox.Tx) error{
	"Enqueue": func(ctx context.Context, tx outbox.Tx) error {
		_, err := outbox.Enqueue(ctx, tx, "", message)
		return err
	},
	"EnqueueMany": func(ctx context.Context, tx outbox.Tx) error {
		_, err := outbox.EnqueueMany(ctx, tx, "", []outbox.Message{message})
		return err
	},
}

// foreign is a driver of another database. Its statements answer with result, or with err.
type foreign struct {
	result *result
	err    error
	sent   int
}

type result struct{ columns []string }

func (r *result) Columns() []string         { return r.columns }
func (r *result) Close() error              { return nil }
func (r *result) Next([]driver.Value) error { return io.EOF }

func (f *foreign) Connect(context.Context) (driver.Conn, error) { return f, nil }
func (f *foreign) Driver() driver.Driver                        { return nil }
func (f *foreign) Prepare(string) (driver.Stmt, error)          { return nil, errors.New("not prepared") }
func (f *foreign) Close() error                                 { return nil }
func (f *foreign) Begin() (driver.Tx, error)                    { return f, nil }
func (f *foreign) Commit() error                                { return nil }
func (f *foreign) Rollback() error                              { return nil }
func (f *foreign) QueryContext(_ context.Context, _ string, args []driver.NamedValue) (driver.Rows, error) {
	f.sent++
	for _, arg := range args {
		if !driver.IsValue(arg.Value) {
			return nil, fmt.Errorf("%T", arg.Value)
		}
	}
	if f.result == nil {
		return nil, f.err
	}
	return f.result, nil
}

func begin(t *testing.T, f *foreign) *sql.Tx {
	t.Helper()
	db := sql.OpenDB(f)
	t.Cleanup(func() { _ = db.Close() })
	tx, err := db.Begin()
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// own is a transaction of a library that does not embed a *sql.Tx.
type own struct{ inner *sql.Tx }

func (o own) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return o.inner.QueryContext(ctx, query, args...)
}
func (o own) Commit() error   { return o.inner.Commit() }
func (o own) Rollback() error { return o.inner.Rollback() }

// TestUnsupportedDriver: the first enqueue says which driver it is, whether the database refuses the statement or does not
// run it, and keeps the error of the driver.
func TestUnsupportedDriver(t *testing.T) {
	t.Parallel()
	syntax := errors.New(`near "INSERT": syntax error`)
	const supports = ", and sqltx supports PostgreSQL with pgx/stdlib, lib/pq or pgdriver: "
	for name, enqueue := range ways {
		f := &foreign{err: syntax}
		err := enqueue(t.Context(), sqltx.Wrap(begin(t, f)))
		require.ErrorIs(t, err, syntax)
		require.EqualError(t, err, "enqueue shop/placed: the transaction is of driver github.com/outboxgen/outboxgen/sqltx_test"+supports+syntax.Error(), name)
		require.Equal(t, 1, f.sent)

		err = enqueue(t.Context(), sqltx.Wrap(own{begin(t, f)}))
		require.EqualError(t, err, "enqueue shop/placed: the transaction is a sqltx_test.own"+supports+syntax.Error(), name)

		err = enqueue(t.Context(), sqltx.Wrap(begin(t, &foreign{result: &result{}})))
		require.ErrorContains(t, err, "sqltx_test"+supports+"the statement returned no columns", name)
	}
}

// postgreSQL is an error of a driver that wraps another one.
type postgreSQL struct{}

func (postgreSQL) Error() string    { return "canceling statement" }
func (postgreSQL) SQLState() string { return "40001" }

// TestErrorsOfOtherKindsDoNotBlameTheDriver: those of PostgreSQL behind a driver that wraps one, and of the connection.
func TestErrorsOfOtherKindsDoNotBlameTheDriver(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{postgreSQL{}, io.ErrUnexpectedEOF, sql.ErrConnDone, pgconn.NewParseConfigError("", "conn closed", nil), fmt.Errorf("read: %w", io.EOF)} {
		for name, enqueue := range ways {
			err := enqueue(t.Context(), sqltx.Wrap(begin(t, &foreign{err: cause})))
			require.ErrorIs(t, err, cause, name)
			require.NotContains(t, err.Error(), "sqltx", name)
			require.Equal(t, cause == postgreSQL{}, errors.Is(err, outbox.ErrSerialization))
		}
	}
}

// TestTransactionThatIsOver: nothing is sent, and the error says so.
func TestTransactionThatIsOver(t *testing.T) {
	t.Parallel()
	for name, enqueue := range ways {
		for _, end := range []func(*sql.Tx) error{(*sql.Tx).Commit, (*sql.Tx).Rollback} {
			f := &foreign{}
			tx := begin(t, f)
			require.NoError(t, end(tx))
			err := enqueue(t.Context(), sqltx.Wrap(tx))
			require.ErrorIs(t, err, sql.ErrTxDone, name)
			require.EqualError(t, err, "enqueue shop/placed: nothing was sent: sql: transaction has already been committed or rolled back")
			require.Zero(t, f.sent)
		}
	}
}

// TestNoTransaction: nil, in each form, is an error and no panic. A Fake needs no transaction.
func TestNoTransaction(t *testing.T) {
	t.Parallel()
	for _, tx := range []outbox.Tx{sqltx.Wrap(nil), sqltx.Wrap((*sql.Tx)(nil))} {
		for name, enqueue := range ways {
			require.EqualError(t, enqueue(t.Context(), tx), "enqueue shop/placed: no transaction given (nil)", name)
		}
		require.Error(t, tx.Commit(t.Context()))
		require.Error(t, tx.Rollback(t.Context()))
		_, err := tx.Query(t.Context(), "SELECT 1")
		require.Error(t, err)
		require.Error(t, tx.QueryRow(t.Context(), "SELECT 1").Scan())
		topic := outbox.NewTopic[int](outbox.TopicSpec{Namespace: "shop", Name: "placed"})
		fake := &outboxfake.DB{}
		_, err = fake.Enqueue(t.Context(), tx, topic.Untyped(), 7)
		require.NoError(t, err)
		require.Equal(t, []int{7}, outboxfake.Payloads(fake, topic))
	}
}

// TestUnknownArgument: a statement of a newer outbox may have arguments that this sqltx does not know.
func TestUnknownArgument(t *testing.T) {
	t.Parallel()
	f := &foreign{}
	_, err := sqltx.Wrap(begin(t, f)).Query(t.Context(), "SELECT $1", map[string]string{"secret": "1"})
	require.EqualError(t, err, "sqltx cannot send an argument of type map[string]string: update module sqltx to the version of outboxgen")
	require.Zero(t, f.sent)
}

// TestWhatDoesNotCompile: what is not a transaction is refused by the compiler.
func TestWhatDoesNotCompile(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", ".").Output()
	require.NoError(t, err)
	compiled := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		name, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		compiled[name] = file
	}
	from := importer.ForCompiler(token.NewFileSet(), "gc", func(name string) (io.ReadCloser, error) { return os.Open(compiled[name]) })
	for argument, want := range map[string]string{
		"*sql.Tx":   "",
		"sqltx.Tx":  "",
		"*sql.DB":   "*sql.DB does not implement sqltx.Tx (missing method Commit)",
		"*sql.Conn": "*sql.Conn does not implement sqltx.Tx (missing method Commit)",
		"*sql.Stmt": "*sql.Stmt does not implement sqltx.Tx (missing method Commit)",
		"any":       "any does not implement sqltx.Tx (missing method Commit)",
	} {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, "program.go", `package program

import (
	"database/sql"
	"github.com/outboxgen/outboxgen/sqltx"
)

func program(tx `+argument+`, _ *sql.Tx) { sqltx.Wrap(tx) }
`, parser.SkipObjectResolution)
		require.NoError(t, err)
		conf := types.Config{Importer: from}
		_, err = conf.Check("program", fset, []*ast.File{file}, nil)
		if want == "" {
			require.NoError(t, err, argument)
		} else {
			require.ErrorContains(t, err, want, argument)
		}
	}
}

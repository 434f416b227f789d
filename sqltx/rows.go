package sqltx

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// rows are the rows of database/sql as those of pgx. It embeds pgx.Rows, which is nil, because a later pgx may add
// methods to it. outbox calls none of those that are not below.
type rows struct {
	pgx.Rows

	ctx  context.Context // of the statement
	sent *sql.Rows
	of   *wrapped
	err  error
}

func (r *rows) Next() bool { return r.sent.Next() }

func (r *rows) Close() {
	if err := r.sent.Close(); err != nil && r.err == nil {
		r.err = r.of.explain(r.ctx, err)
	}
}

func (r *rows) Err() error {
	if r.err != nil {
		return r.err
	}
	if err := r.sent.Err(); err != nil {
		return r.of.explain(r.ctx, err)
	}
	return nil
}

func (r *rows) CommandTag() pgconn.CommandTag { return pgconn.CommandTag{} }

func (r *rows) Scan(into ...any) error {
	targets := make([]any, len(into))
	for i, target := range into {
		switch t := target.(type) {
		case *pgtype.UUID:
			targets[i] = (*scannedUUID)(t)
		case *[]pgtype.UUID:
			targets[i] = (*scannedUUIDs)(t)
		default:
			targets[i] = target
		}
	}
	return r.of.explain(r.ctx, r.sent.Scan(targets...))
}

// text returns a value as a driver gives that of a type that it does not know.
func text(value any) (string, error) {
	switch v := value.(type) {
	case string:
		return v, nil
	case []byte:
		return string(v), nil
	}
	return "", fmt.Errorf("the driver gives a %T, not text", value)
}

type scannedUUID pgtype.UUID

func (u *scannedUUID) Scan(value any) error {
	if value == nil {
		*u = scannedUUID{}
		return nil
	}
	s, err := text(value)
	if err != nil {
		return err
	}
	return (*pgtype.UUID)(u).Scan(s)
}

type scannedUUIDs []pgtype.UUID

func (u *scannedUUIDs) Scan(value any) error {
	if value == nil {
		*u = nil
		return nil
	}
	s, err := text(value)
	if err != nil {
		return err
	}
	*u, err = decodeUUIDs(s)
	return err
}

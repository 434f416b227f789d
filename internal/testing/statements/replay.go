package statements

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// ErrRefused says that PostgreSQL does not take the text of a statement.
var ErrRefused = errors.New("refused")

// Replay executes the cases of a statement, whose text is text with the schema in place of the marker. It returns what
// differs first from what the cases say, or nothing. A case whose rows are locked by another session needs locker. It is
// left out if there is none.
func (b *Bench) Replay(ctx context.Context, s Statement, text string, cases []Case, locker *pgx.Conn) (string, error) {
	different := ""
	err := b.each(ctx, s, text, cases, locker, func(i int, did string) bool {
		if did != cases[i].Want {
			different = fmt.Sprintf("%s: case %d: the statement did\n%sand not\n%s", s.Unit, i+1, did, cases[i].Want)
		}
		return different == ""
	})
	return different, err
}

// Record sets what the cases say to what the statement does.
func (b *Bench) Record(ctx context.Context, s Statement, text string, cases []Case, locker *pgx.Conn) error {
	return b.each(ctx, s, text, cases, locker, func(i int, did string) bool {
		cases[i].Want = did
		return true
	})
}

// each calls do with what the statement does in each case, until do returns false. All cases are in one transaction, except
// those with locked rows.
func (b *Bench) each(
	ctx context.Context, s Statement, text string, cases []Case, locker *pgx.Conn, do func(i int, did string) bool,
) (err error) {
	var like *Prepared
	if s.Call { // text may call a function of another schema, which changes the same tables
		if like, err = b.Prepare(ctx, s, strings.ReplaceAll(s.Text, Marker, b.schema), nil); err != nil {
			return err
		}
	}
	p, err := b.Prepare(ctx, s, text, like)
	if err != nil {
		return fmt.Errorf("prepare %s: %w: %w", s.Unit, ErrRefused, err)
	}
	defer func() { _ = b.Forget(ctx, p) }() // only memory of the session
	begun := false
	end := func() error {
		if !begun {
			return nil
		}
		begun = false
		return b.End(ctx)
	}
	defer func() {
		if ended := end(); err == nil {
			err = ended
		}
	}()
	for i, c := range cases {
		did := ""
		switch {
		case c.Contended() && locker == nil:
			continue
		case c.Contended():
			if err := end(); err != nil {
				return err
			}
			did, err = b.Contend(ctx, locker, p, c)
		default:
			if !begun {
				if err := b.Begin(ctx); err != nil {
					return err
				}
				begun = true
			}
			if err := b.Set(ctx, c); err != nil {
				return fmt.Errorf("%s: case %d: insert the rows: %w", s.Unit, i+1, err)
			}
			var r Result
			r, err = b.Run(ctx, p, c)
			did = r.String()
		}
		if err != nil {
			return fmt.Errorf("%s: case %d: %w", s.Unit, i+1, err)
		}
		if !do(i, did) {
			return nil
		}
	}
	return nil
}

package statements

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Contend executes a case some of whose rows another session has locked, or changed. The rows are committed meanwhile, and
// deleted again. If the statement waits for a lock, the result says which rows it has locked by then, so the order of locks
// shows. If it waits for a change, that is committed, and the result is what it does then.
func (b *Bench) Contend(ctx context.Context, locker *pgx.Conn, p *Prepared, c Case) (result string, err error) {
	if err := b.commit(ctx, c); err != nil {
		return "", err
	}
	defer func() {
		if end := b.clean(context.WithoutCancel(ctx), locker, c); err == nil {
			err = end
		}
	}()
	if _, err := locker.Exec(ctx, "BEGIN"); err != nil {
		return "", err
	}
	for _, r := range c.Locked {
		var where []string
		for _, cell := range r.Cells {
			where = append(where, pgx.Identifier{cell.Name}.Sanitize()+" = "+quote(b.now.expand(cell.Value)))
		}
		tag, err := locker.Exec(ctx, fmt.Sprintf("SELECT FROM %s WHERE %s FOR UPDATE", pgx.Identifier{b.schema, r.Table}.Sanitize(),
			strings.Join(where, " AND ")))
		if err != nil {
			return "", err
		}
		if tag.RowsAffected() != 1 {
			return "", fmt.Errorf("%d rows are %s", tag.RowsAffected(), r)
		}
	}
	for _, sql := range c.Meanwhile {
		if _, err := locker.Exec(ctx, b.now.expand(strings.ReplaceAll(sql, Marker, b.schema))); err != nil {
			return "", err
		}
	}
	if err := b.Begin(ctx); err != nil {
		return "", err
	}
	if err := b.plan(ctx, c); err != nil {
		return "", err
	}
	if err := b.exec(ctx, "SAVEPOINT call"); err != nil {
		return "", err
	}
	b.before = nil
	type outcome struct {
		result Result
		err    error
	}
	done := make(chan outcome, 1)
	pid := b.conn.PgConn().PID()
	go func() {
		r, err := b.Run(ctx, p, c)
		done <- outcome{r, err}
	}()
	for {
		select {
		case o := <-done:
			return o.result.String(), o.err
		case <-time.After(time.Millisecond):
		}
		var waits bool
		err := locker.QueryRow(ctx, "SELECT pg_backend_pid() = ANY (pg_blocking_pids($1))", pid).Scan(&waits)
		if err != nil {
			return "", err
		}
		if !waits {
			continue
		}
		if len(c.Meanwhile) > 0 {
			if _, err := locker.Exec(ctx, "COMMIT"); err != nil {
				return "", err
			}
			o := <-done
			return "waits\n" + o.result.String(), o.err
		}
		held, err := b.held(ctx, locker, p)
		if _, cancelErr := locker.Exec(ctx, "SELECT pg_cancel_backend($1)", pid); err == nil {
			err = cancelErr
		}
		<-done
		return "waits\n" + held, err
	}
}

// commit inserts the rows of a case.
func (b *Bench) commit(ctx context.Context, c Case) error {
	if _, err := b.conn.Exec(ctx, "BEGIN; SAVEPOINT world"); err != nil {
		return err
	}
	if err := b.Set(ctx, c); err != nil {
		return errors.Join(err, b.End(ctx))
	}
	_, err := b.conn.Exec(ctx, "COMMIT")
	return err
}

// clean ends the transactions and deletes all rows.
func (b *Bench) clean(ctx context.Context, locker *pgx.Conn, c Case) error {
	if _, err := locker.Exec(ctx, "ROLLBACK"); err != nil {
		return err
	}
	if err := b.End(ctx); err != nil {
		return err
	}
	var script strings.Builder
	script.WriteString("BEGIN; SET LOCAL statement_timeout = 0;")
	seen := map[string]bool{}
	for _, r := range c.Rows {
		seen[r.Table] = true
	}
	for name := range b.tables {
		if seen[name] || len(c.Meanwhile) > 0 && name != "schema_migrations" {
			script.WriteString("DELETE FROM " + pgx.Identifier{b.schema, name}.Sanitize() + ";")
		}
	}
	return b.exec(ctx, script.String()+"COMMIT")
}

// held lists the rows that the statement has locked: those that locker cannot lock.
func (b *Bench) held(ctx context.Context, locker *pgx.Conn, p *Prepared) (string, error) {
	if p.state == nil {
		return "", nil
	}
	var held []string
	for _, t := range p.state.tables {
		var key []string
		for _, k := range t.Key {
			key = append(key, pgx.Identifier{t.Columns[k].Name}.Sanitize()+"::text")
		}
		if len(key) == 0 || t.Name == advisory {
			continue
		}
		table := pgx.Identifier{b.schema, t.Name}.Sanitize()
		name := "array_to_string(ARRAY[" + strings.Join(key, ", ") + "], ' ')"
		all, err := names(ctx, locker, fmt.Sprintf("SELECT %s FROM %s", name, table))
		if err != nil {
			return "", err
		}
		free, err := names(ctx, locker, fmt.Sprintf("SELECT %s FROM %s FOR UPDATE SKIP LOCKED", name, table))
		if err != nil {
			return "", err
		}
		for _, one := range all {
			if !slices.Contains(free, one) {
				held = append(held, "holds "+t.Name+" "+b.now.shorten(one, "", 0)+"\n")
			}
		}
	}
	slices.Sort(held)
	return strings.Join(held, ""), nil
}

func names(ctx context.Context, conn *pgx.Conn, sql string) ([]string, error) {
	rows, err := conn.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

package statements

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Run executes p with the arguments of c on the rows that Set has inserted, and takes back what it has changed.
func (b *Bench) Run(ctx context.Context, p *Prepared, c Case) (Result, error) {
	results, err := b.RunAll(ctx, []*Prepared{p}, c)
	if err != nil {
		return Result{}, err
	}
	return results[0], nil
}

// RunAll is Run for several statements, each on the same rows, in one round trip.
func (b *Bench) RunAll(ctx context.Context, all []*Prepared, c Case) (results []Result, err error) {
	first := all[0]
	if first.state != nil && b.before == nil {
		read := b.conn.PgConn().ExecPrepared(ctx, first.state.name, nil, nil, nil).Read()
		if read.Err != nil {
			return nil, read.Err
		}
		b.before = b.lines(first.state, read)
	}
	pipe := b.conn.PgConn().StartPipeline(ctx)
	defer func() {
		if end := pipe.Close(); err == nil {
			err = end
		}
	}()
	for _, p := range all {
		pipe.SendQueryParams("ROLLBACK TO call", nil, nil, nil, nil)
		if p.numbered {
			pipe.SendQueryParams(b.reset, nil, nil, nil, nil)
		}
		values, err := b.arguments(p, c)
		switch {
		case err != nil:
			return nil, err
		case p.of.Table != "":
			pipe.SendQueryParams(b.insert(p.of.Table, c.Args), nil, nil, nil, nil)
		case p.of.Call:
			pipe.SendQueryParams(b.call(p, c), values, p.oids, nil, nil)
		default:
			pipe.SendQueryPrepared(p.name, values, nil, nil)
		}
		if p.state != nil {
			pipe.SendQueryPrepared(p.state.name, nil, nil, nil)
		}
		pipe.SendPipelineSync()
	}
	if err := pipe.Flush(); err != nil {
		return nil, err
	}
	for _, p := range all {
		r, err := b.result(pipe, p)
		if err != nil {
			return nil, err
		}
		results = append(results, r)
	}
	return results, nil
}

// result reads what the server answers to one statement of RunAll.
func (b *Bench) result(pipe *pgconn.Pipeline, p *Prepared) (Result, error) {
	var answers []*pgconn.Result
	var failed error
	for {
		answer, err := pipe.GetResults()
		if reader, ok := answer.(*pgconn.ResultReader); ok && err == nil {
			read := reader.Read()
			answers, err = append(answers, read), read.Err
		}
		var pg *pgconn.PgError
		switch {
		case errors.As(err, &pg):
			failed = err
		case err != nil:
			return Result{}, err
		}
		if _, ok := answer.(*pgconn.PipelineSync); ok {
			break
		}
	}
	if failed != nil {
		var pg *pgconn.PgError
		if errors.As(failed, &pg); Lost(failed) {
			return Result{}, failed
		}
		return Result{Err: b.failure(pg)}, nil
	}
	call := 1
	if p.numbered {
		call++
	}
	r := Result{Returned: b.returned(answers[call], p.ordered)}
	if len(answers[call].FieldDescriptions) == 0 {
		r.Tag = answers[call].CommandTag.String()
	}
	if p.state != nil {
		r.changes(b.before, b.lines(p.state, answers[call+1]))
	}
	return r, nil
}

// call is the call of a function. An argument that the case leaves out has its default, if there is one.
func (b *Bench) call(p *Prepared, c Case) string {
	var args []string
	for i, name := range p.of.Params {
		if _, given := Get(c.Args, name); given || i < len(p.of.Params)-p.of.defaults {
			args = append(args, fmt.Sprintf("%s => $%d", pgx.Identifier{name}.Sanitize(), i+1))
		}
	}
	return p.text + "(" + strings.Join(args, ", ") + ")"
}

// Lost reports whether err says that the rows of the case are gone, for example because of a timeout while they were inserted.
func Lost(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "3B001" || pg.Code == "25P02")
}

func (b *Bench) failure(pg *pgconn.PgError) string {
	text := pg.Code
	if pg.ConstraintName != "" {
		return text + " " + pg.ConstraintName
	}
	return text + " " + b.now.shorten(strings.ReplaceAll(pg.Message, b.schema+".", ""), "", 0)
}

// arguments returns the parameters in their order. One that the case leaves out is null, or an empty array.
func (b *Bench) arguments(p *Prepared, c Case) ([][]byte, error) {
	if p.of.Table != "" {
		return nil, nil
	}
	for _, cell := range c.Args {
		if !slices.Contains(p.of.Params, cell.Name) {
			return nil, fmt.Errorf("the statement has no parameter %s", cell.Name)
		}
	}
	values := make([][]byte, len(p.oids))
	for i := range values {
		if i >= len(p.of.Params) {
			return nil, fmt.Errorf("parameter $%d has no name", i+1)
		}
		cell, given := Get(c.Args, p.of.Params[i])
		switch {
		case given && cell.Null:
		case given:
			values[i] = []byte(b.now.expand(cell.Value))
		case IsArray(p.oids[i]):
			values[i] = []byte("{}")
		}
	}
	return values, nil
}

// IsArray reports whether an OID is that of a type of arrays that parameters have.
func IsArray(oid uint32) bool {
	return slices.Contains([]uint32{1000, 1001, 1005, 1007, 1009, 1016, 1021, 1022, 1115, 1185, 1187, 2951, 3807, 199, 5039, 271}, oid)
}

// Age is how long ago Set was called.
func (b *Bench) Age() time.Duration { return time.Since(b.now.time) }

package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/testing/statements"
)

// replayTest is the test that executes the cases. Here they are executed on a mutant without it, which takes milliseconds.
const replayTest = "internal/testing/statements.TestCases"

// replayer executes cases on mutants. Each worker has its own, with a database of its own.
type replayer struct {
	server *server
	conn   *pgx.Conn
	locker *pgx.Conn
	bench  *statements.Bench
	known  map[string]statements.Statement
}

func newReplayer(ctx context.Context, server *server) (*replayer, error) {
	server, err := server.apart(ctx)
	if err != nil {
		return nil, err
	}
	r := &replayer{server: server}
	if r.conn, err = pgx.Connect(ctx, server.URLOf(server.in)); err != nil {
		return nil, err
	}
	if r.locker, err = pgx.Connect(ctx, server.URLOf(server.in)); err != nil {
		return nil, err
	}
	if r.bench, err = openBench(ctx, server, r.conn, "outbox"); err != nil {
		return nil, err
	}
	if _, err := r.conn.Exec(ctx, endless); err != nil {
		return nil, err
	}
	r.known, err = allStatements(ctx, server, r.bench)
	return r, err
}

// endless ends a mutant that has no end of its own.
const endless = "SET statement_timeout = '10s'"

// kills reports whether the cases of the unit of m find it.
func (r *replayer) kills(ctx context.Context, m mutant) (bool, error) {
	s, ok := r.known[m.unit]
	if !ok {
		return false, nil
	}
	cases, err := statements.ReadCases(filepath.Join(r.server.root, casesDir), m.unit)
	if err != nil || len(cases) == 0 {
		return false, err
	}
	text := strings.ReplaceAll(s.Text, statements.Marker, "outbox")
	bench := r.bench
	name := r.server.name()
	switch {
	case m.file == "":
		text = strings.ReplaceAll(m.text, statements.Marker, "outbox")
	case s.Table != "":
		if _, err := r.conn.Exec(ctx, script(m, name)); err != nil {
			return false, fmt.Errorf("%w: %w", statements.ErrRefused, err)
		}
		if bench, err = openBench(ctx, r.server, r.conn, name); err != nil {
			return false, err
		}
	default:
		object := strings.ReplaceAll(strings.Replace(m.object, statements.Marker, name, 1), statements.Marker, "outbox")
		if _, err := r.conn.Exec(ctx, "CREATE SCHEMA "+name+";"+object); err != nil {
			return false, fmt.Errorf("%w: %w", statements.ErrRefused, err)
		}
		text = strings.Replace(text, "outbox.", name+".", 1)
	}
	if m.file != "" {
		defer func() {
			_, _ = r.conn.Exec(context.WithoutCancel(ctx), "SET client_min_messages = warning; DROP SCHEMA "+name+" CASCADE; "+endless)
		}()
	}
	different, err := bench.Replay(ctx, s, text, cases, r.locker)
	return different != "", err
}

// runCases executes the cases on the mutants of SQL, and prints those that live.
func runCases(ctx context.Context, o options, chosen []mutant, explained map[string]string) (int, error) {
	server, err := startServer(ctx)
	if err != nil {
		return 1, err
	}
	defer func() { _ = server.Stop() }()
	replayers := make(chan *replayer, o.workers)
	for range o.workers {
		r, err := newReplayer(ctx, server)
		if err != nil {
			return 1, err
		}
		replayers <- r
	}
	chosen = slices.DeleteFunc(chosen, func(m mutant) bool { return m.goPackage != "" })
	start := time.Now()
	var mu sync.Mutex
	var count, killed, because, unexplained int
	parallel(o.workers, chosen, func(m mutant) {
		if ctx.Err() != nil {
			return
		}
		r := <-replayers
		kills, err := r.kills(ctx, m)
		replayers <- r
		mu.Lock()
		defer mu.Unlock()
		if errors.Is(err, statements.ErrRefused) {
			return
		}
		count++
		switch {
		case err != nil:
			fmt.Printf("%v: %s\n", err, m.id)
		case kills:
			killed++
			if explained[m.id] != "" {
				fmt.Printf("%s has a reason to live, but a case kills it: %s\n", explainedFile, m.id)
			}
			return
		case explained[m.id] != "":
			because++
			return
		default:
			fmt.Printf("lives: %s\n", m.id)
		}
		unexplained++
	})
	fmt.Printf("%s\n", time.Since(start).Round(time.Second))
	fmt.Printf("mutants=%d killed=%d explained=%d unexplained=%d\n", count, killed, because, unexplained)
	return 0, ctx.Err()
}

// digestCases is a hash of the cases of a unit.
func digestCases(unit string) string {
	text, err := os.ReadFile(filepath.Join(casesDir, statements.Name(unit)))
	if err != nil {
		return "" // it has none
	}
	return fmt.Sprintf("+%x", sha256.Sum256(text))[:9]
}

package consumetest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
)

// childVariable has the orders of a child.
const childVariable = "OUTBOXGEN_CONSUMETEST_CHILD"

// orders are those of a child that consumes until it is killed.
type orders struct {
	Test, Database, Address string
	Batch                   int
	Place                   place
}

// place is where a child waits to be killed.
type place string

const (
	inMethod    place = "in a method, in front of the commit"
	afterCommit place = "behind a commit, in front of the acknowledgement"
	whenParked  place = "when a message was parked"
)

// ready is what a child says when it waits.
const ready = "consumetest: waits to be killed"

// isChild runs the receiver, in a child. It returns false in any other process.
func isChild(t *testing.T, h Harness) bool {
	text := os.Getenv(childVariable)
	if text == "" {
		return false
	}
	var o orders
	require.NoError(t, json.Unmarshal([]byte(text), &o))
	if o.Test != t.Name() {
		return true
	}
	wait := func() {
		fmt.Println(ready)
		select {}
	}
	e, cfg := &effects{}, config(o.Batch)
	cfg.MaxAttempts = 1_000_000 // no dead letters, however long it takes until it is killed
	switch o.Place {
	case inMethod:
		e.then = func(_ context.Context, _ pgx.Tx, s step, _ int) error {
			if s.N == 3 {
				wait()
			}
			return nil
		}
	default:
		cfg.Observer = &receive.Observer{Settled: func(s receive.Settled) {
			if o.Place == afterCommit || s.Outcome == receive.Parked {
				wait()
			}
		}}
		e.then = func(_ context.Context, _ pgx.Tx, s step, _ int) error {
			if o.Place == whenParked && s.N == 2 {
				return errRefused
			}
			return nil
		}
	}
	t.Fatal(h.Run(t.Context(), o.Address, pool(t, o.Database), consumerOf(t, e), cfg))
	return true
}

// killed kills one process after the other with SIGKILL. Then another one settles what they have left.
func killed(b *bench) {
	if b.Local {
		b.Skip("another process cannot reach the broker")
	}
	test, _, _ := strings.Cut(b.name, "/"+killedName)
	var keys []string
	for round, o := range []orders{{Batch: 100, Place: inMethod}, {Batch: 1, Place: afterCommit}, {Batch: 100, Place: whenParked}} {
		now := names([]string{"a", "b", "c", "d"}, round)
		keys = append(keys, now...)
		b.put(steps, now...)
		o.Test, o.Database, o.Address = test, runtimetest.ChildURL(b, b.admin), b.Address
		child := runtimetest.Spawn(b, strings.ReplaceAll(test, "/", "$/^"), childVariable, o)
		require.Contains(b, child.Await(b, ready), ready, "the child has ended: %s", o.Place)
		b.requireUnacknowledged()
		child.Kill()
		runtimetest.ChildIsGone(b, b.admin)
	}
	r := b.start(&effects{}, config(10))
	b.requireSettled(want{n: steps, keys: keys}, r)
	b.stop(r)
	b.requireClean()
}

// killedName is the name of the check as a subtest.
const killedName = "killed_processes"

package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const vetYAML = `version: "1"
package: events
namespaces:
  mini_chat:
    stubs: none
    topics:
      turn_finalized: {payload: {turn_id: uuid}}
operations:
  finalize_turn:
    outcomes:
      settled: [mini_chat/turn_finalized]
`

const vetProgram = `package app

import (
	"context"

	"example.com/app/events"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

func Enqueue(ctx context.Context, tx pgx.Tx, p events.TurnFinalized) {
	_, _ = events.EnqueueTurnFinalized(ctx, tx, p)
}

func Finalize(ctx context.Context, pool *pgxpool.Pool) error {
	return events.FinalizeTurn(ctx, pool, func(ctx context.Context, tx *events.FinalizeTurnTx) (events.FinalizeTurnOutcome, error) {
		return events.FinalizeTurnOutcome{}, nil
	})
}
`

const vetTest = `package app

import (
	"testing"

	"example.com/app/events"
)

func TestMayDoWhatItLikes(t *testing.T) {
	_, _ = events.EnqueueTurnFinalized(t.Context(), nil, events.TurnFinalized{})
}
`

// TestVet: the command vet, and go vet with this program as its tool, find the same in a module of a user. The exit codes are
// those of findings, of wrong usage and of success.
func TestVet(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("slow: left out by -short")
	}
	dir, run := newModule(t)
	write := func(name, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	write("events/outbox.yaml", vetYAML)
	write("app/app.go", vetProgram)
	write("app/app_test.go", vetTest)
	run("go", "tool", "outboxgen", "generate", "--config", "events/outbox.yaml")
	tool := strings.TrimSpace(run("go", "tool", "-n", "outboxgen"))
	call := func(name string, args ...string) (code int, stdout, stderr string) {
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off", "GOSUMDB=off")
		var out, errs strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &errs
		var exit *exec.ExitError
		if err := cmd.Run(); errors.As(err, &exit) {
			code = exit.ExitCode()
		} else {
			require.NoError(t, err)
		}
		return code, out.String(), errs.String()
	}

	const owned = "EnqueueTurnFinalized enqueues an event of operation FinalizeTurn outside it: call events.FinalizeTurn, and return tx.Settled"
	const discarded = "the error of EnqueueTurnFinalized is discarded: the transaction may commit without the event"
	const zero = "this return ends the operation with a zero outcome, which rolls it back: return the outcome of a method of its transaction, or an error"
	app := filepath.Join("app", "app.go")
	code, out, errs := call(tool, "vet")
	require.Equal(t, 1, code, errs)
	require.Empty(t, out)
	require.Equal(t, app+":12:9: "+discarded+" [outboxerr]\n"+app+":12:16: "+owned+" [outboxowned]\n"+app+":17:3: "+zero+" [outboxzero]\n", errs)

	code, out, errs = call(tool, "vet", "--json", "./app")
	require.Equal(t, 1, code, errs)
	var document struct {
		Findings []struct {
			File, Rule, Severity, Message string
			Line, Column                  int
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &document))
	require.Len(t, document.Findings, 3)
	require.Equal(t, "outboxzero", document.Findings[2].Rule)
	require.Equal(t, 17, document.Findings[2].Line)

	code, _, errs = call("go", "vet", "-vettool="+tool, "./...")
	require.Equal(t, 1, code)
	for _, finding := range []string{":12:9: " + discarded, ":12:16: " + owned, ":17:3: " + zero} {
		require.Contains(t, errs, app+finding)
	}
	code, _, errs = call("go", "vet", "-vettool="+tool, "-outboxzero", "./...")
	require.Equal(t, 1, code)
	require.NotContains(t, errs, owned)
	require.Contains(t, errs, zero)

	code, out, errs = call(tool, "vet", "./events")
	require.Zero(t, code, errs)
	require.Empty(t, out+errs)
	code, out, _ = call(tool, "vet", "--json", "./events")
	require.Zero(t, code)
	require.JSONEq(t, `{"findings": []}`, out)

	code, _, errs = call(tool, "vet", "./nothing")
	require.Equal(t, 2, code)
	require.Contains(t, errs, "outboxgen: vet: a package cannot be read or does not compile")
	code, _, errs = call(tool, "vet", "--", "-x")
	require.Equal(t, 2, code)
	require.Equal(t, "outboxgen: \"-x\" is not a package\n", errs)
	write("app/app.go", strings.Replace(vetProgram, "return events.FinalizeTurnOutcome{}, nil", "return nil", 1))
	code, _, errs = call(tool, "vet", "./...")
	require.Equal(t, 2, code)
	require.Contains(t, errs, "app.go:17:10: not enough return values")
}

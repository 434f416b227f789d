package cli_test

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/cmd/outboxgen/internal/cli"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// until is a writer that calls found once when text was written n times.
type until struct {
	sync.Mutex
	bytes.Buffer
	text  string
	n     int
	found func()
}

func (u *until) Write(p []byte) (int, error) {
	u.Lock()
	defer u.Unlock()
	n, err := u.Buffer.Write(p)
	if strings.Count(u.String(), u.text) >= u.n {
		u.found()
	}
	return n, err
}

// status --watch prints a block per interval where there is no terminal, and ends with Ctrl-C.
func TestStatusWatchPrintsUntilItIsInterrupted(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := &until{text: "no topic has events", n: 2, found: cancel}
	var stderr bytes.Buffer
	code := cli.Run(ctx, cli.Env{Stdout: out, Stderr: &stderr, Getenv: func(string) string { return "" }},
		[]string{"status", "--watch", "--database-url", pgtest.URL(t, pool)})
	require.Zero(t, code, stderr.String())
	require.Empty(t, stderr.String())
	require.NotContains(t, out.String(), "\x1b")
	require.Equal(t, 2, strings.Count(out.String(), out.text))
}

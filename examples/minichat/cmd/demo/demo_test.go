package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMain makes the test binary also work as the worker process, because the demo runs its own binary again.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == workCommand {
		os.Exit(workMain(os.Args[2], os.Args[3]))
	}
	os.Exit(m.Run())
}

func TestDemoAccountsForEveryEvent(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	require.Equal(t, exitFine, demoMain(t.Context(), []string{"-turns", "200", "-json"}, &stdout, &stderr), "%s%s", &stdout, &stderr)
	require.Contains(t, stderr.String(), "killed in the middle of a batch")

	var a Account
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &a))
	require.True(t, a.Correct)
	require.Empty(t, a.Problems)
	// The results for 200 turns, which depend on the numbers of the turns.
	require.Equal(t, 200-4*(1+1+2), a.Committed)
	require.Equal(t, 4*(1+2+2), a.RolledBack)
	require.Equal(t, 4*(3+2), a.Duplicates)
	require.Equal(t, 4, a.Refused)
	require.Equal(t, 4, a.Dead)
	require.Equal(t, a.Committed-a.Dead, a.Delivered)
	require.Zero(t, a.Left)
	require.GreaterOrEqual(t, a.InHand, holdUp)
	require.Positive(t, a.Redelivered)
	require.Positive(t, a.Retried)
	require.Equal(t, 196, a.Started)
	require.Equal(t, []int{196, 196, 196}, []int{a.Activity, a.Shown, a.Analytics})
	require.Greater(t, a.Messages, 196) // the consumer died before it had committed its offsets
}

func TestDashboardStaysUntilItIsInterrupted(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	var stdout bytes.Buffer
	var body string
	stderr := &watcher{text: "stay until Ctrl-C: "}
	stderr.do = func() {
		said := stderr.written.String()
		_, rest, _ := strings.Cut(said, "dashboard: ")
		url, _, _ := strings.Cut(rest, "\n")
		go func() {
			defer interrupt()
			for ctx.Err() == nil && !strings.Contains(body, "mini_chat/turn_finalized") { // until it is in the overview
				resp, err := http.Get(url)
				if err != nil {
					return
				}
				text, _ := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				body = string(text)
			}
		}()
	}
	require.Equal(t, exitFine, demoMain(ctx, []string{"-turns", "200", "-stay"}, &stdout, stderr), stderr)
	require.Contains(t, stdout.String(), "correct: ")
	require.Contains(t, body, "minichat demo")
	require.Contains(t, body, "mini_chat/turn_finalized")
	require.NotContains(t, stderr.String(), "interrupted")
}

// Not parallel, because it changes the folder for temporary files to check what is left there.
func TestInterruptLeavesNothingBehind(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	stderr := &watcher{text: "worker a killed", do: interrupt}
	var stdout bytes.Buffer
	require.Equal(t, exitInterrupted, demoMain(ctx, []string{"-turns", "1000"}, &stdout, stderr))
	require.Empty(t, stdout.String())
	require.Contains(t, stderr.String(), "interrupted")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-turns", "10"}, {"more"}, {"-loud"}} {
		var stderr bytes.Buffer
		require.Equal(t, exitUsage, demoMain(t.Context(), args, &stderr, &stderr))
		require.NotEmpty(t, stderr.String())
	}
}

// watcher calls do when text has been written to it.
type watcher struct {
	text string
	do   func()

	mu      sync.Mutex
	written strings.Builder
}

func (w *watcher) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if strings.Contains(string(p), w.text) {
		w.do()
	}
	return w.written.Write(p)
}

func (w *watcher) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.written.String()
}

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"html"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/threads/web"
	"github.com/outboxgen/outboxgen/outboxtest"
)

func TestConversation(t *testing.T) {
	t.Parallel()
	url := outboxtest.Postgres(t).Config().ConnString()
	for range 2 { // the second run finds the data of the first
		var out bytes.Buffer
		require.NoError(t, run(t.Context(), url, "", &out))
		for _, want := range []string{
			`ada sees    2  companion: You say: "Does the ferry run today?"`,
			"bob comes back and asks for the messages after message 2\nbob sees    3  ada: Then I take the bus.\n",
			"bob posts message 5, and again, which is message 5\n",
			"messages 6 (3 by users), events in the log 6, jobs done 3, dead letters 0\n",
		} {
			require.Contains(t, out.String(), want)
		}
	}
}

// TestListen serves until it is told to stop, with an open stream.
func TestListen(t *testing.T) {
	t.Parallel()
	url := outboxtest.Postgres(t).Config().ConnString()
	patient, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ctx, interrupt := context.WithCancel(patient)
	defer interrupt()
	in, out := io.Pipe()
	over := make(chan error, 1)
	go func() {
		err := run(ctx, url, "localhost:0", out)
		over <- errors.Join(err, out.Close())
	}()
	line, err := bufio.NewReader(in).ReadString('\n')
	require.NoError(t, err)
	base, found := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	require.True(t, found, line)

	c := web.NewClient(base, uuid.New(), uuid.New())
	require.NoError(t, c.Create(patient))
	feed, err := c.Follow(patient, 0)
	require.NoError(t, err)
	_, err = c.Post(patient, uuid.New(), "ada", "hello")
	require.NoError(t, err)
	for _, text := range []string{"hello", `You say: "hello"`} {
		m, err := feed.Next()
		require.NoError(t, err)
		require.Equal(t, text, m.Text)
	}
	requireDashboard(t, base)
	interrupt()
	_, err = feed.Next()
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, <-over)
}

// requireDashboard looks at the events of the outbox: the text of a message is sensitive.
func requireDashboard(t *testing.T, base string) {
	t.Helper()
	link := regexp.MustCompile(`/outbox/events/[0-9a-f-]{36}`).FindString(source(t, base+"/outbox/events?topic=threads/message_created"))
	require.NotEmpty(t, link)
	event := source(t, base+link)
	require.Contains(t, event, `"text": "[masked]"`)
	require.NotContains(t, event, "hello")
}

// source returns the text of a page.
func source(t *testing.T, url string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode, string(body))
	return html.UnescapeString(string(body))
}

func TestRunNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, run(t.Context(), "postgres://localhost:1/none?connect_timeout=1", "", io.Discard), "connect")
	url := outboxtest.Postgres(t).Config().ConnString()
	require.ErrorContains(t, run(t.Context(), url, "localhost:-1", io.Discard), "invalid port")
}

package web

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/examples/threads/thread"
)

// Client is a client of one thread. Any number of goroutines may use it concurrently.
type Client struct {
	url string
}

// NewClient returns a client of a tenant's thread on the server at base, such as "http://localhost:8080".
func NewClient(base string, tenant, id uuid.UUID) *Client {
	return &Client{url: fmt.Sprintf("%s/tenants/%s/threads/%s", base, tenant, id)}
}

// StatusError is an answer with an error status.
type StatusError struct {
	Code int
	Text string
}

func (e *StatusError) Error() string { return fmt.Sprintf("server answers %d: %s", e.Code, e.Text) }

// Create creates the thread unless it exists.
func (c *Client) Create(ctx context.Context) error {
	response, err := c.do(ctx, http.MethodPut, c.url, nil, nil)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

// Post posts a message. A second post with the same id is the same message.
func (c *Client) Post(ctx context.Context, id uuid.UUID, author, text string) (thread.Message, error) {
	var m thread.Message
	body, err := json.Marshal(posting{ID: id, Author: author, Text: text})
	if err != nil {
		return m, err
	}
	response, err := c.do(ctx, http.MethodPost, c.url+"/messages", nil, body)
	if err != nil {
		return m, err
	}
	defer func() { _ = response.Body.Close() }()
	return m, json.NewDecoder(response.Body).Decode(&m)
}

// Follow opens the stream of the messages after the one with the given number. It ends when ctx ends or the feed is closed.
func (c *Client) Follow(ctx context.Context, after int64) (*Feed, error) {
	header := http.Header{"Accept": {"text/event-stream"}}
	if after > 0 {
		header.Set("Last-Event-ID", strconv.FormatInt(after, 10))
	}
	response, err := c.do(ctx, http.MethodGet, c.url+"/messages", header, nil)
	if err != nil {
		return nil, err
	}
	return &Feed{body: response.Body, lines: bufio.NewReader(response.Body), last: after}, nil
}

func (c *Client) do(ctx context.Context, method, url string, header http.Header, body []byte) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for name, values := range header {
		request.Header[name] = values
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= http.StatusMultipleChoices {
		defer func() { _ = response.Body.Close() }()
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		return nil, &StatusError{Code: response.StatusCode, Text: strings.TrimSpace(string(text))}
	}
	return response, nil
}

// Feed is an open stream. One goroutine reads it.
type Feed struct {
	body  io.ReadCloser
	lines *bufio.Reader
	last  int64
}

// Next waits for a message. It returns io.EOF when the server has ended the stream: then call Follow again with Last.
func (f *Feed) Next() (thread.Message, error) {
	for {
		line, err := f.lines.ReadString('\n')
		if err != nil {
			return thread.Message{}, err
		}
		field, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch field {
		case "id":
			if f.last, err = strconv.ParseInt(value, 10, 64); err != nil {
				return thread.Message{}, fmt.Errorf("read id: %w", err)
			}
		case "data": // one line, and the last field of an event here
			var m thread.Message
			if err := json.Unmarshal([]byte(value), &m); err != nil {
				return m, fmt.Errorf("read message: %w", err)
			}
			return m, nil
		}
	}
}

// Last returns the number of the latest message from Next.
func (f *Feed) Last() int64 { return f.last }

// Close ends the stream.
func (f *Feed) Close() error { return f.body.Close() }

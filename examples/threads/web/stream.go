package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/examples/threads/hub"
	"github.com/outboxgen/outboxgen/examples/threads/thread"
)

// pageSize is how many messages one query reads from the table.
const pageSize = 100

// stream writes the messages of a thread as long as the client stays, each with its number as the id. First it writes the
// messages after Last-Event-ID, which a browser sends by itself when it comes back; without that header it writes all. Then
// it writes those that are pushed. A client gets each message once and in order, however often it is pushed.
func (s *server) stream(w http.ResponseWriter, r *http.Request) error {
	tenant, id, err := address(r)
	if err != nil {
		return err
	}
	var last int64
	if text := r.Header.Get("Last-Event-ID"); text != "" {
		if last, err = strconv.ParseInt(text, 10, 64); err != nil {
			return &requestError{fmt.Errorf("read Last-Event-ID: %w", err)}
		}
	}
	if err := thread.Find(r.Context(), s.pool, tenant, id); err != nil {
		return err
	}
	// Before the table is read, so that no message that is posted in between is missed.
	subscription := s.hub.Subscribe(id)
	defer subscription.Close()

	out := &stream{w: w, control: http.NewResponseController(w), server: s, tenant: tenant, thread: id, last: last}
	if err := out.follow(r.Context(), subscription); err != nil && r.Context().Err() == nil && !errors.Is(err, errGone) {
		slog.ErrorContext(r.Context(), "stream failed", "thread_id", id, "error", err)
	}
	return nil // if the client is still there, it comes back and asks for the rest
}

// stream is the response to one client. One goroutine owns it.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	server  *server
	tenant  uuid.UUID
	thread  uuid.UUID
	last    int64 // number of the latest message that was written
}

// errGone says that the client takes no more messages.
var errGone = errors.New("client has gone")

// follow writes until the client leaves, the subscription ends or an error occurs.
func (s *stream) follow(ctx context.Context, subscription *hub.Subscription) error {
	s.w.Header().Set("Content-Type", "text/event-stream")
	s.w.Header().Set("Cache-Control", "no-store")
	if err := s.send("retry: 1000\n\n"); err != nil { // milliseconds until a client that lost the connection comes back
		return err
	}
	if err := s.catchUp(ctx); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case p, open := <-subscription.Messages():
			if !open {
				return nil // the client was too slow, or the server stops
			}
			if err := s.take(ctx, thread.Of(p)); err != nil {
				return err
			}
		}
	}
}

// take writes a message that was pushed, and the missing ones before it.
func (s *stream) take(ctx context.Context, m thread.Message) error {
	switch {
	case m.Number <= s.last:
		return nil // read from the table already, or pushed again
	case m.Number == s.last+1:
		return s.write(m)
	default:
		return s.catchUp(ctx) // an earlier one was not pushed: it is a dead letter, or older than the listener
	}
}

// write sends one message.
func (s *stream) write(m thread.Message) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	s.last = m.Number
	return s.send("id: %d\ndata: %s\n\n", m.Number, data)
}

// send gives the client writeTimeout to take the text, so that a client that has stopped reading is disconnected.
func (s *stream) send(format string, args ...any) error {
	err := s.control.SetWriteDeadline(time.Now().Add(writeTimeout))
	if err == nil {
		_, err = fmt.Fprintf(s.w, format, args...)
	}
	if err == nil {
		err = s.control.Flush()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	return nil
}

// catchUp writes the messages in the table after the latest one that was written.
func (s *stream) catchUp(ctx context.Context) error {
	for {
		page, err := thread.After(ctx, s.server.pool, s.tenant, s.thread, s.last, pageSize)
		if err != nil {
			return err
		}
		for _, m := range page {
			if err := s.write(m); err != nil {
				return err
			}
		}
		if len(page) < pageSize {
			return nil
		}
	}
}

package webhook_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/consumetest"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/consume/webhook"
)

// TestConformance: the handler passes the suite of consumers, with a sender that retries and keeps the order of a key.
func TestConformance(t *testing.T) {
	var all sync.Map
	consumetest.Conformance(t, consumetest.Harness{
		Open: func(testing.TB) consumetest.Broker {
			s := &sender{more: make(chan struct{})}
			s.waiting, s.busy, s.dead = make(map[string][]outgoing), make(map[string]bool), make(map[string]string)
			address := fmt.Sprintf("%p", s)
			all.Store(address, s)
			return consumetest.Broker{Address: address, Local: true, Send: s.send, Pending: s.pending, Dead: s.letters}
		},
		Run: func(ctx context.Context, address string, pool *pgxpool.Pool, c *consume.Consumer, cfg receive.Config) error {
			s, _ := all.Load(address)
			return s.(*sender).run(ctx, pool, c, cfg)
		},
	})
}

// outgoing is a message with its failed attempts.
type outgoing struct {
	consumetest.Message
	attempts int
}

// sender posts messages, those of a key one after the other. It makes dead letters.
type sender struct {
	mu      sync.Mutex
	waiting map[string][]outgoing // by key
	busy    map[string]bool
	dead    map[string]string
	why     sync.Map      // the error of the latest attempt, by event
	more    chan struct{} // closed when there may be more to post
}

func (s *sender) send(_ context.Context, ms []consumetest.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range ms {
		s.waiting[m.Key] = append(s.waiting[m.Key], outgoing{Message: m})
	}
	s.changed()
	return nil
}

// changed wakes those who look for messages. The caller has the lock.
func (s *sender) changed() {
	close(s.more)
	s.more = make(chan struct{})
}

func (s *sender) pending(context.Context) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ms := range s.waiting {
		n += len(ms)
	}
	return n, nil
}

func (s *sender) letters(context.Context) (map[string]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.dead), nil
}

// next takes the first message of a key that nobody posts. It waits for one.
func (s *sender) next(ctx context.Context) (o outgoing, ok bool) {
	for ctx.Err() == nil {
		s.mu.Lock()
		for key, ms := range s.waiting {
			if len(ms) > 0 && !s.busy[key] {
				s.busy[key] = true
				s.mu.Unlock()
				return ms[0], true
			}
		}
		more := s.more
		s.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-more:
		}
	}
	return o, false
}

// answered notes what became of a message.
func (s *sender) answered(o outgoing, status, maxAttempts int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ms := s.waiting[o.Key]
	switch {
	case status == http.StatusInternalServerError:
		ms[0].attempts++
	case status >= 400 && status < 429:
		ms[0].attempts = maxAttempts
	}
	if ms[0].attempts >= maxAttempts {
		why, _ := s.why.Load(o.Attributes["id"])
		s.dead[o.Attributes["id"]] = fmt.Sprint(why)
		status = http.StatusNoContent
	}
	if status == http.StatusNoContent {
		s.waiting[o.Key] = ms[1:]
	}
	s.busy[o.Key] = false
	s.changed()
}

// senders is how many messages are posted at a time, more than are applied.
const senders = 8

// run serves the handler, and posts to it, until ctx ends.
func (s *sender) run(ctx context.Context, pool *pgxpool.Pool, c *consume.Consumer, cfg receive.Config) error {
	h, err := webhook.Handler(webhook.Config{
		DB: pool, Consumer: c, Secrets: []string{secret},
		Timeout: cmp.Or(cfg.EffectTimeout, 30*time.Second), Concurrency: cfg.Concurrency,
		Logger: cfg.Logger, Observer: webhook.Observer{Answered: func(_ context.Context, a webhook.Answered) {
			if a.Err != nil {
				s.why.Store(a.Event.ID.String(), a.Err)
			}
		}},
	})
	if err != nil {
		return err
	}
	server := httptest.NewServer(h)
	defer server.Close()
	var posting sync.WaitGroup
	defer posting.Wait()
	for range senders {
		posting.Go(func() {
			for {
				o, ok := s.next(ctx)
				if !ok {
					return
				}
				status := post(ctx, server, o.Message)
				s.answered(o, status, cfg.MaxAttempts)
			}
		})
	}
	<-ctx.Done()
	return nil
}

// post posts a message as publish/webhook does, and returns the status of the answer, 0 if there was none.
func post(ctx context.Context, server *httptest.Server, m consumetest.Message) int {
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, bytes.NewReader(m.Body))
	if err != nil {
		return 0
	}
	for name, value := range m.Attributes {
		q.Header.Set("ce-"+name, value)
	}
	id, now := m.Attributes["id"], strconv.FormatInt(time.Now().Unix(), 10)
	q.Header.Set("content-type", m.ContentType)
	q.Header.Set("webhook-id", id)
	q.Header.Set("webhook-timestamp", now)
	q.Header.Set("webhook-signature", sign(secret, id, now, m.Body))
	answer, err := server.Client().Do(q)
	if err != nil {
		return 0
	}
	_ = answer.Body.Close()
	return answer.StatusCode
}

package webhook_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/webhook"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

func TestMain(m *testing.M) { runtimetest.Main(m) }

const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// step is the payload of the tests' topic.
type step struct {
	Key string `json:"key"`
	N   int    `json:"n"`
}

var stepTaken = consume.NewTopic[step](consume.TopicSpec{Namespace: "users", Name: "step_taken"})

// steps is a consumer that inserts a row per event.
type steps struct {
	do func(ctx context.Context, tx pgx.Tx, d consume.Delivery[step]) error // runs after the insert; nil succeeds
}

func (s *steps) ConsumeStepTaken(ctx context.Context, tx pgx.Tx, d consume.Delivery[step]) error {
	if _, err := tx.Exec(ctx, "INSERT INTO steps (event, key, n) VALUES ($1, $2, $3)", d.ID, d.Payload.Key, d.Payload.N); err != nil {
		return err
	}
	if s.do != nil {
		return s.do(ctx, tx, d)
	}
	return nil
}

// receiver is a handler behind a server, with what it reports.
type receiver struct {
	t    testing.TB
	pool *pgxpool.Pool
	url  string

	mu       sync.Mutex
	answered []webhook.Answered
	log      strings.Builder
}

func (r *receiver) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.Write(p)
}

func (r *receiver) logged() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.String()
}

// last returns the last request that the observer got.
func (r *receiver) last() webhook.Answered {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.answered[len(r.answered)-1]
}

func newConsumer(t testing.TB, s *steps) *consume.Consumer {
	ib, err := inbox.New(inbox.Config{Group: "crm"})
	require.NoError(t, err)
	c, err := consume.New(ib, consume.Handle(stepTaken, s, (*steps).ConsumeStepTaken))
	require.NoError(t, err)
	return c
}

func newReceiver(t testing.TB, s *steps, change func(*webhook.Config)) *receiver {
	t.Helper()
	pool := pgtest.Database(t)
	_, err := pool.Exec(t.Context(), "CREATE TABLE steps (no bigint GENERATED ALWAYS AS IDENTITY, event uuid, key text, n int)")
	require.NoError(t, err)
	r := &receiver{t: t, pool: pool}
	cfg := webhook.Config{
		DB: pool, Consumer: newConsumer(t, s), Secrets: []string{secret}, Timeout: time.Minute,
		Logger: slog.New(slog.NewTextHandler(r, nil)),
		Observer: webhook.Observer{Answered: func(_ context.Context, a webhook.Answered) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.answered = append(r.answered, a)
		}},
	}
	if change != nil {
		change(&cfg)
	}
	h, err := webhook.Handler(cfg)
	require.NoError(t, err)
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	r.url = server.URL
	return r
}

func (r *receiver) count(table string) (n int) {
	require.NoError(r.t, r.pool.QueryRow(r.t.Context(), "SELECT count(*) FROM "+table).Scan(&n))
	return n
}

// request is a request before it is sent.
type request struct {
	method string
	header http.Header
	body   []byte
	stream bool // without a Content-Length
}

func sign(secret, id, timestamp string, body []byte) string {
	key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(id + "." + timestamp + "." + string(body)))
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// signed signs a request at a time.
func (q *request) signed(id string, at time.Time, secrets ...string) {
	timestamp := strconv.FormatInt(at.Unix(), 10)
	var signatures []string
	for _, secret := range secrets {
		signatures = append(signatures, sign(secret, id, timestamp, q.body))
	}
	q.header.Set("webhook-id", id)
	q.header.Set("webhook-timestamp", timestamp)
	q.header.Set("webhook-signature", strings.Join(signatures, " "))
}

// event is a signed request with a step.
func event(t testing.TB, encoder publish.Encoder, id uuid.UUID, p any) *request {
	t.Helper()
	payload, err := json.Marshal(p)
	require.NoError(t, err)
	m, err := encoder.Encode(publish.Outgoing{
		Event:   outbox.Event{ID: id, Namespace: "users", Topic: "step_taken", Version: 1, CreatedAt: time.Now()},
		Payload: payload,
	})
	require.NoError(t, err)
	q := &request{method: http.MethodPost, header: http.Header{}, body: m.Body}
	for name, value := range m.Headers {
		q.header.Set(name, value)
	}
	for name, value := range m.Attributes {
		q.header.Set("ce-"+name, value)
	}
	q.header.Set("content-type", m.ContentType)
	q.signed(id.String(), time.Now(), secret)
	return q
}

var (
	binary     = publish.CloudEvents("", publish.Binary)
	structured = publish.CloudEvents("", publish.Structured)
)

// reply is an answer.
type reply struct {
	status int
	body   string
	header http.Header
}

func (r *receiver) send(q *request) reply {
	r.t.Helper()
	answer, err := r.try(r.t.Context(), q)
	require.NoError(r.t, err)
	return answer
}

func (r *receiver) try(ctx context.Context, q *request) (reply, error) {
	var body io.Reader = bytes.NewReader(q.body)
	if q.stream {
		body = io.MultiReader(body)
	}
	sent, err := http.NewRequestWithContext(ctx, q.method, r.url, body)
	if err != nil {
		return reply{}, err
	}
	sent.Header = q.header
	response, err := http.DefaultClient.Do(sent)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = response.Body.Close() }()
	said, err := io.ReadAll(response.Body)
	return reply{response.StatusCode, strings.TrimSpace(string(said)), response.Header}, err
}

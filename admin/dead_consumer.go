package admin

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/outbox"
)

// DeadConsumers returns the consumer groups that have dead letters in this database, by name.
func (a *Admin) DeadConsumers(ctx context.Context) ([]string, error) {
	names, err := a.db.Each(a.pool).InboxMessageGroups(ctx)
	return names, a.db.Wrap("list consumer groups with dead letters", err)
}

// ConsumerGroups returns the consumer groups that have recorded an event in this database, or keep a message in it, by
// name.
func (a *Admin) ConsumerGroups(ctx context.Context) ([]string, error) {
	names, err := a.db.Each(a.pool).InboxGroups(ctx)
	return names, a.db.Wrap("list consumer groups", err)
}

// ParkedMessage is a message that a consumer group tries again. The later messages of its key wait behind it.
type ParkedMessage struct {
	No int64 `json:"no"`
	// Place is where its broker had the message. Topic is its type if it belongs to no topic, EventID is zero if it cannot
	// be read, and Key is "" if the message has no order.
	Place    string        `json:"place"`
	Topic    string        `json:"topic"`
	Key      string        `json:"key,omitempty"`
	EventID  uuid.UUID     `json:"id,omitzero"`
	TenantID uuid.NullUUID `json:"tenant_id,omitzero"`
	// Attempts is how often it has failed, since its replay if it was replayed. AttemptsLeft is how often it is tried
	// before it is a dead letter; -1 if that is not known.
	Attempts     int    `json:"attempts"`
	AttemptsLeft int    `json:"-"`
	Error        string `json:"error"`
	// ReceivedAt is when it arrived, FailedAt when it failed last, and NextAttemptAt when it is tried again. Of a message
	// that waits behind another one, FailedAt is when it was parked, and NextAttemptAt is zero.
	ReceivedAt    time.Time `json:"received_at"`
	FailedAt      time.Time `json:"failed_at"`
	NextAttemptAt time.Time `json:"next_attempt_at,omitzero"`
	// Behind counts the messages of its key that wait behind it, up to 1,000.
	Behind Count `json:"-"`
}

// behindLimit is up to which number the messages behind a parked one are counted: there are as many counts as keys.
const behindLimit = 1000

// Parked returns up to limit messages that a consumer group has parked and that wait behind no other, the next to be
// tried first.
func (a *Admin) Parked(ctx context.Context, consumer string, limit int) ([]ParkedMessage, error) {
	const what = "list parked messages"
	if limit < 1 || limit > math.MaxInt32 {
		return nil, fmt.Errorf("%s: %w", what, argumentError("limit", "%d is not a positive number", limit))
	}
	rows, err := a.db.Each(a.pool).InboxParked(ctx, queries.InboxParkedParams{
		ConsumerGroup: consumer, Most: behindLimit + 1, PageSize: int32(limit),
	})
	if err != nil {
		return nil, a.db.Wrap(what, err)
	}
	list := make([]ParkedMessage, len(rows))
	for i, r := range rows {
		list[i] = parkedOf(r)
	}
	return list, nil
}

func parkedOf(r queries.InboxParkedRow) ParkedMessage {
	m := ParkedMessage{
		No: r.No, Place: r.Place, Topic: r.Topic, Key: r.Key, EventID: r.EventID.Bytes,
		TenantID: uuid.NullUUID{UUID: r.TenantID.Bytes, Valid: r.TenantID.Valid}, Attempts: int(r.Attempts), AttemptsLeft: -1,
		Error: r.Error, ReceivedAt: r.ReceivedAt.Time.UTC(), FailedAt: r.FailedAt.Time.UTC(),
		NextAttemptAt: r.NextAttemptAt.Time.UTC(), Behind: Count{N: min(r.Behind, behindLimit), More: r.Behind > behindLimit},
	}
	if r.MaxAttempts > 0 {
		m.AttemptsLeft = max(int(r.MaxAttempts-r.Attempts), 0)
	}
	return m
}

// ParkedDetail is a parked message with what it contains.
type ParkedDetail struct {
	ParkedMessage
	// Version is that of the topic; 0 if it cannot be read.
	Version int
	// Headers has the attributes too, as headers that begin with ce_.
	Headers map[string]string
	// Body is that of the message, and Payload the same if it is JSON, otherwise nil.
	Body    []byte
	Payload json.RawMessage
}

// ParkedMessage returns the message with a number that a consumer group has parked, also if it waits behind another
// one. ok is false if the group has none parked with this number.
func (a *Admin) ParkedMessage(ctx context.Context, consumer string, no int64) (d ParkedDetail, ok bool, err error) {
	r, err := a.db.Each(a.pool).InboxParkedMessage(ctx, queries.InboxParkedMessageParams{
		ConsumerGroup: consumer, Most: behindLimit + 1, No: no,
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return d, false, nil
	}
	if err != nil {
		return d, false, a.db.Wrap("read parked message", err)
	}
	d = ParkedDetail{
		ParkedMessage: parkedOf(queries.InboxParkedRow{
			No: r.No, Place: r.Place, Key: r.Key, EventID: r.EventID, Topic: r.Topic, TenantID: r.TenantID, Attempts: r.Attempts,
			MaxAttempts: r.MaxAttempts, Error: r.Error, ReceivedAt: r.ReceivedAt, FailedAt: r.FailedAt,
			NextAttemptAt: r.NextAttemptAt, Behind: r.Behind,
		}),
		Version: int(r.Version), Headers: headersOf(r.Envelope), Body: r.Body,
	}
	if json.Valid(r.Body) {
		d.Payload = r.Body
	}
	return d, true, nil
}

// timeOf returns when an event was enqueued, as its message says; the zero time if it does not.
func timeOf(headers map[string]string, body []byte) time.Time {
	text := headers["ce_time"]
	for name, value := range headers {
		if strings.EqualFold(name, "outbox-time") {
			text = value
		}
	}
	if strings.HasPrefix(strings.ToLower(headers["content-type"]), "application/cloudevents+json") {
		var e struct {
			Time string `json:"time"`
		}
		if json.Unmarshal(body, &e) == nil {
			text = e.Time
		}
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}
	}
	return t.UTC()
}

// scanPiece reads a piece of the dead letters: those of a consumer group, if the filter names one.
func scanPiece(
	ctx context.Context, q *queries.Queries, consumer string, p queries.DeadLetterScanParams,
) ([]queries.DeadLetterScanRow, error) {
	if consumer == "" {
		return q.DeadLetterScan(ctx, p)
	}
	found, err := q.InboxMessageScan(ctx, queries.InboxMessageScanParams{
		Ids: p.Ids, Newest: p.Newest, AfterNo: p.AfterNo, Piece: p.Piece, Texts: p.Texts, ConsumerGroup: consumer,
		Namespace: p.Namespace, Topic: p.Topic, TenantID: p.TenantID, Key: p.Key, Since: p.Since, Until: p.Until,
		Error: p.Error,
	})
	rows := make([]queries.DeadLetterScanRow, len(found))
	for i, r := range found {
		rows[i] = queries.DeadLetterScanRow{
			Matches: r.Matches, No: r.No, Namespace: r.Namespace, Topic: r.Topic, TenantID: r.TenantID, DiedAt: r.DiedAt,
			Error: r.Error, Scanned: r.Scanned,
		}
	}
	return rows, err
}

// readConsumed reads dead letters of consumer groups, newest first.
func (a *Admin) readConsumed(ctx context.Context, nos []int64) ([]DeadLetter, error) {
	rows, err := a.db.Each(a.pool).InboxMessageRead(ctx, nos)
	if err != nil {
		return nil, err
	}
	letters := make([]DeadLetter, len(rows))
	for i, r := range rows {
		d := DeadLetter{
			No: r.No, Consumer: r.ConsumerGroup, Place: r.Place, Body: r.Body, ReceivedAt: r.ReceivedAt.Time.UTC(),
			Error: r.Error, DiedAt: r.FailedAt.Time.UTC(),
			Event: outbox.Event{
				Namespace: r.Namespace, Topic: r.Topic, Version: int(r.Version), PartitionKey: r.Key, Attempt: int(r.Attempts),
				Headers: headersOf(r.Envelope), ID: r.EventID.Bytes,
				TenantID: uuid.NullUUID{UUID: r.TenantID.Bytes, Valid: r.TenantID.Valid},
			},
		}
		if d.CreatedAt = timeOf(d.Headers, r.Body); d.CreatedAt.IsZero() {
			d.CreatedAt = d.ReceivedAt
		}
		if json.Valid(r.Body) {
			d.Payload = r.Body
		}
		letters[i] = d
	}
	return letters, nil
}

// headersOf returns the headers of a kept message, with its attributes as headers that begin with ce_, as in Kafka. A
// value that is not text is in base64.
func headersOf(column string) map[string]string {
	var e struct {
		ContentType json.RawMessage            `json:"content_type"`
		Attributes  map[string]json.RawMessage `json:"attributes"`
		Headers     map[string]json.RawMessage `json:"headers"`
	}
	if json.Unmarshal([]byte(column), &e) != nil {
		return nil
	}
	headers := make(map[string]string, len(e.Attributes)+len(e.Headers))
	add := func(name string, value json.RawMessage) {
		var text string
		var encoded struct {
			Base64 string `json:"base64"`
		}
		if json.Unmarshal(value, &text) != nil && json.Unmarshal(value, &encoded) == nil {
			if raw, err := base64.StdEncoding.DecodeString(encoded.Base64); err == nil {
				text = base64.StdEncoding.EncodeToString(raw)
			}
		}
		if text != "" {
			headers[name] = text
		}
	}
	for name, value := range e.Headers {
		add(name, value)
	}
	for name, value := range e.Attributes {
		add("ce_"+name, value)
	}
	add("content-type", e.ContentType)
	return headers
}

// replayConsumed parks dead letters of a consumer group again, in the transaction of q.
func (a *Admin) replayConsumed(
	ctx context.Context, q *queries.Queries, consumer string, refs []deadRef,
) (int64, error) {
	r, err := q.InboxMessageReplay(ctx, numbers(refs))
	if err != nil || len(r.Keys) == 0 {
		return r.Replayed, err
	}
	return r.Replayed, q.InboxMessagePromote(ctx, queries.InboxMessagePromoteParams{Keys: r.Keys, ConsumerGroup: consumer})
}

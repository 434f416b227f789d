package admin

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// The JSON of what an Admin returns is what the commands of outboxgen print with --json. A topic is "namespace/topic",
// a time is in UTC, a duration is a number of seconds, and what is not known is left out.

// fullName returns "namespace/topic". The type of a consumer's message may belong to no topic, and is returned as it
// is.
func fullName(namespace, topic string) string {
	if namespace == "" {
		return topic
	}
	return namespace + "/" + topic
}

// listed returns all, and an empty list for nil, which JSON would call null.
func listed[T any](all []T) []T { return append([]T{}, all...) }

// MarshalJSON implements json.Marshaler.
func (s TopicStatus) MarshalJSON() ([]byte, error) {
	type plain TopicStatus
	s.Processes, s.Pauses = listed(s.Processes), listed(s.Pauses)
	return json.Marshal(struct {
		Topic string `json:"topic"`
		plain
		OldestSeconds float64 `json:"oldest_seconds"`
		MaxLagSeconds float64 `json:"max_lag_seconds,omitempty"`
	}{s.Name(), plain(s), s.Oldest.Seconds(), s.MaxLag.Seconds()})
}

// MarshalJSON implements json.Marshaler.
func (s ListenerStatus) MarshalJSON() ([]byte, error) {
	type plain ListenerStatus
	s.Processes, s.Pauses = listed(s.Processes), listed(s.Pauses)
	return json.Marshal(struct {
		plain
		LagSeconds    float64 `json:"lag_seconds"`
		MaxLagSeconds float64 `json:"max_lag_seconds,omitempty"`
	}{plain(s), s.Lag.Seconds(), s.MaxLag.Seconds()})
}

// MarshalJSON implements json.Marshaler.
func (s ConsumerStatus) MarshalJSON() ([]byte, error) {
	type plain ConsumerStatus
	return json.Marshal(struct {
		plain
		OldestSeconds  float64 `json:"oldest_seconds"`
		OverdueSeconds float64 `json:"overdue_seconds"`
	}{plain(s), s.Oldest.Seconds(), s.Overdue.Seconds()})
}

// MarshalJSON implements json.Marshaler.
func (w LimitWait) MarshalJSON() ([]byte, error) {
	type plain LimitWait
	return json.Marshal(struct {
		plain
		LongestSeconds float64 `json:"longest_seconds"`
	}{plain(w), w.Longest.Seconds()})
}

// MarshalJSON implements json.Marshaler.
func (d Drained) MarshalJSON() ([]byte, error) {
	type plain Drained
	return json.Marshal(struct {
		Topic   string `json:"topic"`
		Drained bool   `json:"drained"`
		plain
	}{fullName(d.Namespace, d.Topic), d.Is(), plain(d)})
}

// eventStatusJSON has the fields of an EventStatus, and not its methods.
type eventStatusJSON EventStatus

// MarshalJSON implements json.Marshaler.
func (s EventStatus) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		ID    uuid.UUID `json:"id"`
		Topic string    `json:"topic"`
		eventStatusJSON
	}{s.ID, s.Name(), eventStatusJSON(s)})
}

// MarshalJSON implements json.Marshaler.
func (d EventDetail) MarshalJSON() ([]byte, error) {
	headers := d.Headers
	if headers == nil {
		headers = map[string]string{}
	}
	return json.Marshal(struct {
		ID    uuid.UUID `json:"id"`
		Topic string    `json:"topic"`
		eventStatusJSON
		EntityType    string            `json:"entity_type,omitempty"`
		EntityID      string            `json:"entity_id,omitempty"`
		EntityVersion int64             `json:"entity_version,omitempty"`
		Failures      []Failure         `json:"failures"`
		Limits        []EventLimit      `json:"limits,omitempty"`
		Listeners     []EventAtListener `json:"listeners,omitempty"`
		Consumers     []EventAtConsumer `json:"consumers,omitempty"`
		Acts          []EventAct        `json:"acts,omitempty"`
		Headers       map[string]string `json:"headers"`
		Payload       json.RawMessage   `json:"payload,omitempty"`
	}{
		d.ID, d.Name(), eventStatusJSON(d.EventStatus), d.Entity.Type, d.Entity.ID, d.Entity.Version,
		listed(d.Failures), d.Limits, d.Listeners, d.Consumers, d.Acts, headers, d.Payload,
	})
}

// MarshalJSON implements json.Marshaler.
func (e EventLife) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		ID    uuid.UUID `json:"id"`
		Topic string    `json:"topic"`
		eventStatusJSON
		Entity      entityJSON        `json:"entity,omitzero"`
		Causation   string            `json:"causation_id,omitempty"`
		Correlation string            `json:"correlation_id,omitempty"`
		Listeners   []EventAtListener `json:"listeners,omitempty"`
		Consumers   []EventAtConsumer `json:"consumers,omitempty"`
		Acts        []EventAct        `json:"acts,omitempty"`
		Caused      []*EventLife      `json:"caused,omitempty"`
	}{
		e.ID, e.Name(), eventStatusJSON(e.EventStatus), entityJSON(e.Entity), e.Causation, e.Correlation, e.Listeners,
		e.Consumers, e.Acts, e.Caused,
	})
}

// MarshalJSON implements json.Marshaler.
func (g DeadGroup) MarshalJSON() ([]byte, error) {
	type plain DeadGroup
	return json.Marshal(struct {
		Topic string `json:"topic"`
		plain
	}{g.Name(), plain(g)})
}

// entityJSON is an outbox.Entity.
type entityJSON struct {
	Type    string `json:"type"`
	ID      string `json:"id"`
	Version int64  `json:"version"`
}

// MarshalJSON implements json.Marshaler. The Body of a message is left out.
func (d DeadLetter) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		No           int64             `json:"no"`
		Listener     string            `json:"listener,omitempty"`
		Consumer     string            `json:"consumer,omitempty"`
		Place        string            `json:"place,omitempty"`
		ID           uuid.UUID         `json:"id"`
		Topic        string            `json:"topic"`
		Version      int               `json:"version"`
		TenantID     uuid.NullUUID     `json:"tenant_id,omitzero"`
		DedupeKey    string            `json:"dedupe_key,omitempty"`
		PartitionKey string            `json:"partition_key,omitempty"`
		Entity       entityJSON        `json:"entity,omitzero"`
		Headers      map[string]string `json:"headers,omitempty"`
		Payload      json.RawMessage   `json:"payload,omitempty"`
		CreatedAt    time.Time         `json:"created_at"`
		ReceivedAt   time.Time         `json:"received_at,omitzero"`
		DiedAt       time.Time         `json:"died_at"`
		Attempts     int               `json:"attempts"`
		MaxAttempts  int               `json:"max_attempts,omitempty"`
		Error        string            `json:"error"`
		Failures     []Failure         `json:"failures,omitempty"`
	}{
		d.No, d.Listener, d.Consumer, d.Place, d.ID, d.Name(), d.Version, d.TenantID, d.DedupeKey, d.PartitionKey,
		entityJSON(d.Entity), d.Headers, d.Payload, d.CreatedAt, d.ReceivedAt, d.DiedAt, d.Attempt, d.MaxAttempts,
		d.Error, d.Failures,
	})
}

// MarshalJSON implements json.Marshaler.
func (m ParkedMessage) MarshalJSON() ([]byte, error) {
	type plain ParkedMessage
	var left *int
	if m.AttemptsLeft >= 0 {
		left = &m.AttemptsLeft
	}
	return json.Marshal(struct {
		plain
		AttemptsLeft *int  `json:"attempts_left,omitempty"`
		Behind       int64 `json:"behind"`
	}{plain(m), left, m.Behind.N})
}

// Package model turns a decoded outbox.yaml into a Model: every Go and SQL name is computed once, every template is
// parsed, and every rule is checked. A Model is always valid, so the emitter has nothing to check.
package model

import "time"

// Model is one outbox.yaml, checked. Slices keep the order of the YAML.
type Model struct {
	Source     string    // base name of the YAML file, as generated headers quote it
	Package    string    // Go package of the generated code
	Schema     string    // PostgreSQL schema of the tables
	Consumer   *Consumer // nil when the YAML names none
	Retry      Retry     // of defaults
	Types      []*Type
	Namespaces []*Namespace
	Listeners  []*Listener
	Operations []*Operation
}

// Namespace is the owner module of a set of topics.
type Namespace struct {
	Name   string // mini_chat
	GoName string // MiniChat
	Doc    string
	Stubs  bool // false for stubs: none
	Topics []*Topic
}

// Handled returns the queue topics of n that have handlers, in YAML order. The others are published.
func (n *Namespace) Handled() []*Topic {
	var handled []*Topic
	for _, t := range n.QueueTopics() {
		if t.Publish == nil {
			handled = append(handled, t)
		}
	}
	return handled
}

// QueueTopics returns the topics of n that a dispatcher delivers, in YAML order.
func (n *Namespace) QueueTopics() []*Topic {
	var queue []*Topic
	for _, t := range n.Topics {
		if t.Delivery == Queue {
			queue = append(queue, t)
		}
	}
	return queue
}

// Delivery says how the events of a topic reach their handlers.
type Delivery string

// The two ways to deliver.
const (
	Queue Delivery = "queue"
	Log   Delivery = "log"
)

// Fairness says how the events of a queue topic take turns. "" means that the oldest due one is first.
type Fairness string

// FairnessTenant means that no tenant waits behind another's burst.
const FairnessTenant Fairness = "tenant"

// Topic is one kind of event.
type Topic struct {
	Namespace *Namespace
	Name      string // turn_finalized
	GoName    string // TurnFinalized
	Doc       string // "is emitted once per chat turn, ...", may be empty
	Version   int
	Delivery  Delivery
	Renamed   []string      // its earlier names, in YAML order
	Wake      bool          // false for `wake: none`: enqueue does not wake a dispatcher or listener
	Retry     Retry         // of a queue topic; each listener has its own for a log topic
	Lease     time.Duration // likewise
	Retention Retention
	Listeners []*Listener // that read it, in YAML order; a log topic may have none
	Fields    []*Field

	Tenant       *Field        // nil when the topic has no tenant
	DedupeKey    *Template     // nil when the topic has no dedupe key
	PartitionKey *Template     // nil when the topic has no partition key
	Fairness     Fairness      // of a queue topic; FairnessTenant only with a Tenant
	Limits       []Limit       // of a queue topic
	Batch        Batch         // of a queue topic with a handler
	MaxLag       time.Duration // of a queue topic; 0 means no bound
	Sealed       bool          // the payload is encrypted as a whole; the Sealed of fields has no effect then
	Entity       *Entity       // nil when the topic names no entity
	Publish      *Publication  // nil when the topic is not published
	History      []*Past       // the older versions that the lock holds, oldest first
}

// FullName returns "namespace/topic".
func (t *Topic) FullName() string { return t.Namespace.Name + "/" + t.Name }

// Retry bounds the attempts of a topic or listener, and the delays between them.
type Retry struct {
	MaxAttempts int
	BaseDelay   time.Duration
	MaxDelay    time.Duration
}

// Horizon is the longest time from the first attempt to the last, without the time of handlers: the sum of the delays
// min(base*2^(n-1), max), without jitter, of the MaxAttempts-1 retries.
func (r Retry) Horizon() time.Duration {
	var sum time.Duration
	delay := r.BaseDelay
	for i := 1; i < r.MaxAttempts; i++ {
		if delay >= r.MaxDelay {
			return sum + time.Duration(r.MaxAttempts-i)*r.MaxDelay
		}
		sum += delay
		delay *= 2
	}
	return sum
}

// Retention says how long finalised events are kept. A Delivered of zero deletes them on ack. For a log topic it is
// positive and counts from the enqueue.
type Retention struct {
	Delivered time.Duration
	Dead      time.Duration
}

// Entity connects the events of a topic to a versioned thing of the producer.
type Entity struct {
	Type    string
	ID      *Template
	Version *Field // int32 or int64, required; nil when not given
}

// Template is a parsed key pattern such as "{tenant_id}/turn-{turn_id}". Its segments are joined by
// "/" and hold at most one placeholder each, so different field values never render to the same key.
type Template struct {
	Text     string
	Segments []Segment
}

// Segment is Prefix + the field's value + Suffix; with Field nil it is the literal Prefix.
type Segment struct {
	Prefix string
	Field  *Field
	Suffix string
}

// Type is a shared type of the YAML: an enum when Values is set, a scalar when Scalar is, else a struct.
type Type struct {
	Name   string // usage
	GoName string // Usage
	Doc    string
	Values []EnumValue
	Scalar *Field // the type and the bounds of the values; it has no name
	Fields []*Field
}

// IsEnum reports whether t is an enum.
func (t *Type) IsEnum() bool { return len(t.Values) > 0 }

// Parsed reports whether Go can read t from text: it has a function Parse<GoName>.
func (t *Type) Parsed() bool { return t.IsEnum() || t.Scalar != nil && t.Scalar.Type.Kind == UUID }

// HasRules reports whether values of t can be invalid: its Go type has a Validate method.
func (t *Type) HasRules() bool {
	s := t.Scalar
	return s == nil || s.Type.Kind == String || s.Min != nil || s.Max != nil
}

// EnumValue is one constant of an enum.
type EnumValue struct {
	Value  string // completed
	GoName string // OutcomeCompleted
}

// Kind is the shape of a TypeRef.
type Kind string

// The scalar kinds have the names of the YAML. The last three are composed.
const (
	String    Kind = "string"
	Bool      Kind = "bool"
	Int32     Kind = "int32"
	Int64     Kind = "int64"
	Float64   Kind = "float64"
	UUID      Kind = "uuid"
	Timestamp Kind = "timestamp"
	Date      Kind = "date"
	Duration  Kind = "duration"
	Bytes     Kind = "bytes"
	JSON      Kind = "json"
	Named     Kind = "named" // TypeRef.Type
	List      Kind = "list"  // []TypeRef.Elem
	Map       Kind = "map"   // map[string]TypeRef.Elem
)

// TypeRef is the type of a field or of an element.
type TypeRef struct {
	Kind Kind
	Type *Type    // for Named
	Elem *TypeRef // for List and Map
}

// Field is one member of a payload or of a shared struct.
type Field struct {
	Name      string // turn_id, also the JSON name
	GoName    string // TurnID
	Doc       string
	Type      TypeRef
	Optional  bool
	Sensitive bool
	Sealed    bool // it is encrypted where it is stored; Sensitive is set, too

	// Bounds, nil or empty when they are not set. Min and Max hold an int64 for int32, int64 and duration (in
	// nanoseconds), and a float64 for float64. Lengths count runes of a string, bytes of bytes, items of a list, entries
	// of a map.
	Min, Max       any
	MinLen, MaxLen *int
	Pattern        string // RE2, known to compile
}

// Listener is a named consumer of log topics.
type Listener struct {
	Name          string
	GoName        string
	Doc           string
	Stubs         bool // false for stubs: none
	Topics        []*Topic
	Publish       bool // publish: true; its topics all publish to one broker
	Transactional bool // mode: transactional
	Latest        bool // start: latest
	ParkKeys      bool // on_failure: park_key
	Concurrency   int  // 1 when Transactional
	Shards        int
	Batch         Batch
	Rate          Rate // the zero value without a bound
	Lease         time.Duration
	MaxLag        time.Duration // 0 without an alarm
	Retry         Retry
}

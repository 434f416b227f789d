// Package spec reads an outbox.yaml into a Spec: what is written where, without its meaning. The decoder, its
// suggestions and the JSON Schema of the file share one set of key tables.
package spec

import (
	"time"

	"github.com/outboxgen/outboxgen/generator/diag"
)

// Value is a scalar of the file with its position. The zero Value is that of a key that is absent, or whose value was
// refused and reported.
type Value[T any] struct {
	V   T
	Pos diag.Pos
	Bad bool // the key is there, but its value was refused and reported; not for durations and bounds
}

// Set reports whether the file holds a usable value.
func (v Value[T]) Set() bool { return v.Pos.IsValid() }

// Section is a list or a mapping of the file, in its order. The zero Section is that of a key that is absent or was
// refused.
type Section[T any] struct {
	Items []T
	Pos   diag.Pos
}

// Set reports whether the file holds the section, even an empty one.
func (s Section[T]) Set() bool { return s.Pos.IsValid() }

// Spec is one outbox.yaml.
type Spec struct {
	File       string
	Pos        diag.Pos
	Version    Value[string]
	Package    Value[string]
	Schema     Value[string]
	Consumer   Consumer
	Defaults   Policy
	Types      Section[*Type]
	Namespaces Section[*Namespace]
	Listeners  Section[*Listener]
	Operations Section[*Operation]

	// Hints describe likely mistakes by the position of the value, for findings of the model about it.
	Hints map[diag.Pos]string
}

// Consumer says where code for consumers goes. The zero value means that it is absent.
type Consumer struct {
	Pos     diag.Pos
	Package Value[string]
	Dir     Value[string]
}

// Policy holds the settings of defaults, which a topic may override.
type Policy struct {
	Retry     Retry
	Lease     Value[time.Duration]
	Retention Retention
	Wake      Value[string] // doorbell or none
}

// Retry is a retry mapping.
type Retry struct {
	MaxAttempts Value[int64]
	BaseDelay   Value[time.Duration]
	MaxDelay    Value[time.Duration]
}

// Retention is a retention mapping.
type Retention struct {
	Delivered Value[time.Duration]
	Dead      Value[time.Duration]
}

// Type is a shared type. A valid one has exactly one of Fields, Enum and Scalar, and bounds only with Scalar.
type Type struct {
	Name     Value[string]
	Doc      Value[string]
	Go       Value[string]
	Fields   Section[*Field]
	Enum     Section[EnumValue]
	Scalar   Value[string]
	Min, Max Value[Bound]
	MinLen   Value[int64]
	MaxLen   Value[int64]
	Pattern  Value[string]
}

// EnumValue is a value of an enum, with the name of its constant if it has one.
type EnumValue struct {
	Value Value[string]
	Go    Value[string]
}

// Namespace is a namespace with its topics. Stubs is "none" when it is set.
type Namespace struct {
	Name   Value[string]
	Doc    Value[string]
	Go     Value[string]
	Stubs  Value[string]
	Topics Section[*Topic]
}

// Topic is a topic. When they are set, Delivery is queue or log, Listeners is "none", and Fairness is tenant.
type Topic struct {
	Name         Value[string]
	Doc          Value[string]
	Go           Value[string]
	Version      Value[int64]
	RenamedFrom  Section[Value[string]]
	WireName     Value[string]
	Delivery     Value[string]
	Listeners    Value[string]
	Tenant       Value[string]
	DedupeKey    Value[string]
	PartitionKey Value[string]
	Fairness     Value[string]
	Limits       Section[Limit]
	Batch        Batch
	MaxLag       Value[time.Duration]
	Sealed       Value[bool]
	Entity       Entity
	Publish      Publish
	Policy       Policy
	Payload      Section[*Field]
}

// Limit is an entry of limits. Per is tenant, destination or a template.
type Limit struct {
	Pos         diag.Pos
	Per         Value[string]
	Concurrency Value[int64]
	Rate        Value[Rate]
}

// Rate is a number of events in a period, as in 10/1m.
type Rate struct {
	Events int64
	Period time.Duration
}

// Batch says how many events a handler gets in one call. The zero value means that it is absent.
type Batch struct {
	Pos  diag.Pos
	Size Value[int64]
	Wait Value[time.Duration]
}

// Entity is the entity of a topic. The zero value means that it is absent.
type Entity struct {
	Pos     diag.Pos
	Type    Value[string]
	ID      Value[string]
	Version Value[string]
}

// Publish says where a topic is published. A valid one has exactly one of the brokers. The zero value means that it is
// absent.
type Publish struct {
	Pos                                       diag.Pos
	Kafka, NATS, AMQP, Redis, Webhook, Custom Broker
	Key                                       Value[string]
	Headers                                   Section[*Header]
	Tombstone                                 Value[bool]
}

// Broker is one of the brokers of a Publish, with the destination of events. A valid one has exactly one of Destination
// and Field. The zero value means that it is absent.
type Broker struct {
	Pos         diag.Pos
	Name        Value[string] // of Custom
	Destination Value[string]
	Field       Value[string] // of Webhook and Custom
}

// Header is a header that a published event gets.
type Header struct {
	Name  Value[string]
	Value Value[string]
}

// Secrecy says how a value is kept from people and systems. The zero value, Open, means that it is not.
type Secrecy int

// The degrees: a Masked value is not shown, and a Sealed one is also encrypted wherever it is stored or sent.
const (
	Open Secrecy = iota
	Masked
	Sealed
)

// Field is a field of a payload or of a shared type, written as its type or as a mapping. A field whose type was
// refused has no Type.
type Field struct {
	Name      Value[string]
	Type      Value[string]
	Doc       Value[string]
	Go        Value[string]
	Optional  Value[bool]
	Sensitive Value[Secrecy]
	Min, Max  Value[Bound]
	MinLen    Value[int64]
	MaxLen    Value[int64]
	Pattern   Value[string]
}

// Bound is a min or max as it is written: its meaning depends on the type of the field.
type Bound struct {
	Text   string
	Number bool // a YAML number, else text such as 30s
}

// Listener is a listener. When they are set, Mode is leased or transactional, Start earliest or latest, OnFailure block
// or park_key, and Stubs "none".
type Listener struct {
	Name        Value[string]
	Doc         Value[string]
	Go          Value[string]
	Stubs       Value[string]
	Topics      Section[Value[string]]
	Publish     Value[bool]
	Mode        Value[string]
	Start       Value[string]
	OnFailure   Value[string]
	Concurrency Value[int64]
	Shards      Value[int64]
	Batch       Batch
	Rate        Value[Rate]
	Lease       Value[time.Duration]
	MaxLag      Value[time.Duration]
	Retry       Retry
}

// Operation is an operation with its outcomes.
type Operation struct {
	Name     Value[string]
	Doc      Value[string]
	Go       Value[string]
	Outcomes Section[*Outcome]
}

// Outcome is an outcome of an operation, with the topics of its events.
type Outcome struct {
	Name   Value[string]
	Topics Section[Value[string]]
}

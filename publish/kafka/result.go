package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/outboxgen/outboxgen/outbox"
)

// errNoAnswer is the cause when a batch takes longer than Config.Timeout.
var errNoAnswer = errors.New("no acknowledgement from Kafka")

// class is what an error of the client means for its record.
type class int

const (
	taken       class = iota
	attempt           // a failed attempt; the error may pass
	refused           // this record, or another one of its batch, can never be taken
	doubtful          // like refused, but the error may pass
	invalid           // such a topic cannot exist
	unknown           // the topic does not exist
	fenced            // the producer must not be used again
	unavailable       // the record is not at fault
	unreached         // the record did not reach a broker
	denied            // the cluster takes nothing from this client, for any topic
	noID              // the cluster gives this client no producer id, and the client does not ask again
)

// classes are the classes that do not follow from Kafka's property "retriable".
var classes = map[*kerr.Error]class{
	kerr.MessageTooLarge:       refused,
	kerr.RecordListTooLarge:    refused,
	kerr.InvalidRecord:         refused,
	kerr.CorruptMessage:        doubtful,
	kerr.InvalidTimestamp:      doubtful,
	kerr.UnknownServerError:    attempt,
	kerr.InvalidTopicException: invalid,

	kerr.UnknownTopicOrPartition: unknown,
	kerr.UnknownTopicID:          unknown,
	kerr.InconsistentTopicID:     unknown,

	kerr.OutOfOrderSequenceNumber: fenced,
	kerr.DuplicateSequenceNumber:  fenced,
	kerr.UnknownProducerID:        fenced,
	kerr.InvalidProducerIDMapping: fenced,
	kerr.InvalidProducerEpoch:     fenced,
	kerr.ProducerFenced:           fenced,

	kerr.TopicAuthorizationFailed:           unavailable,
	kerr.ClusterAuthorizationFailed:         denied,
	kerr.GroupAuthorizationFailed:           unavailable,
	kerr.TransactionalIDAuthorizationFailed: noID,
	kerr.DelegationTokenAuthorizationFailed: denied,
	kerr.SaslAuthenticationFailed:           denied,
	kerr.UnsupportedSaslMechanism:           denied,
	kerr.IllegalSaslState:                   denied,
	kerr.SecurityDisabled:                   denied,
	kerr.DelegationTokenExpired:             denied,
	kerr.UnsupportedVersion:                 unavailable,
	kerr.UnsupportedForMessageFormat:        unavailable,
	kerr.UnsupportedCompressionType:         unavailable,
	kerr.InvalidRequiredAcks:                unavailable,
	kerr.InvalidConfig:                      unavailable,
	kerr.PolicyViolation:                    unavailable,
}

// classOf returns the class of an error of the client. An error that is not a Kafka error code means that no broker was
// reached.
func classOf(err error) class {
	if err == nil {
		return taken
	}
	code, known := errors.AsType[*kerr.Error](err)
	if !known {
		return unreached
	}
	if c, listed := classes[code]; listed {
		return c
	}
	if code.Retriable {
		return unavailable
	}
	return attempt
}

// ended returns the error of an event that may have been in flight when ctx ended.
func ended(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, ErrClosed) {
		return outbox.BrokerUnavailable(ErrClosed)
	}
	return fmt.Errorf("produce event: %w", cause)
}

// notSent returns the error of an event of which nothing had been sent when ctx ended.
func notSent(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, ErrClosed) {
		return outbox.BrokerUnavailable(ErrClosed)
	}
	return fmt.Errorf("produce event: %w: %w", outbox.ErrNotSent, cause)
}

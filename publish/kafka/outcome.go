package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/outboxgen/outboxgen/outbox"
)

// errNoAnswer ends a batch that has taken longer than Config.Timeout.
var errNoAnswer = errors.New("no acknowledgement from Kafka")

// verdict is what an error of the client says about the record that it is for.
type verdict int

const (
	taken       verdict = iota
	attempt             // may pass
	refused             // the record is at fault, or another of its batch: for good
	suspect             // as refused, but it may pass
	invalid             // the topic can never be
	unknown             // the topic is not there
	fenced              // the producer is not to be used again
	unavailable         // nothing that the record could help
	unreached           // trouble on the way to a broker
	barred              // the cluster takes nothing from this client, whatever the topic
)

// verdicts are those that do not follow from what Kafka calls retriable.
var verdicts = map[*kerr.Error]verdict{
	kerr.MessageTooLarge:       refused,
	kerr.RecordListTooLarge:    refused,
	kerr.InvalidRecord:         refused,
	kerr.CorruptMessage:        suspect,
	kerr.InvalidTimestamp:      suspect,
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
	kerr.ClusterAuthorizationFailed:         barred,
	kerr.GroupAuthorizationFailed:           unavailable,
	kerr.TransactionalIDAuthorizationFailed: unavailable,
	kerr.DelegationTokenAuthorizationFailed: barred,
	kerr.SaslAuthenticationFailed:           barred,
	kerr.UnsupportedSaslMechanism:           barred,
	kerr.IllegalSaslState:                   barred,
	kerr.SecurityDisabled:                   barred,
	kerr.DelegationTokenExpired:             barred,
	kerr.UnsupportedVersion:                 unavailable,
	kerr.UnsupportedForMessageFormat:        unavailable,
	kerr.UnsupportedCompressionType:         unavailable,
	kerr.InvalidRequiredAcks:                unavailable,
	kerr.InvalidConfig:                      unavailable,
	kerr.PolicyViolation:                    unavailable,
}

// verdictOf judges an error of the client. What is no error code of Kafka is trouble on the way to it.
func verdictOf(err error) verdict {
	if err == nil {
		return taken
	}
	code, known := errors.AsType[*kerr.Error](err)
	if !known {
		return unreached
	}
	if v, listed := verdicts[code]; listed {
		return v
	}
	if code.Retriable {
		return unavailable
	}
	return attempt
}

// ended is what an event fails with that may have been on its way when ctx ended.
func ended(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, ErrClosed) {
		return outbox.BrokerUnavailable(ErrClosed)
	}
	return fmt.Errorf("produce event: %w", cause)
}

// notSent is what an event fails with of which nothing was sent when ctx ended.
func notSent(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, ErrClosed) {
		return outbox.BrokerUnavailable(ErrClosed)
	}
	return fmt.Errorf("produce event: %w: %w", outbox.ErrNotSent, cause)
}

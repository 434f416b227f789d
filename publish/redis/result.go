package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/outboxgen/outboxgen/outbox"
)

// class is what an error of Redis means for its event.
type class int

const (
	attempt     class = iota // a failed attempt; the error may pass
	unavailable              // the event is not at fault
	node                     // the server takes nothing
	denied                   // the servers take nothing from this client
	wrong                    // the destination is not a stream
)

// classes are the classes of the codes with which the errors of Redis begin.
var classes = map[string]class{
	"NOAUTH":      denied,
	"WRONGPASS":   denied,
	"OOM":         node,
	"READONLY":    node,
	"LOADING":     node,
	"MASTERDOWN":  node,
	"MISCONF":     node,
	"NOREPLICAS":  node,
	"BUSY":        node,
	"UNKILLABLE":  node,
	"NOPERM":      unavailable,
	"CLUSTERDOWN": unavailable,
	"MOVED":       unavailable,
	"ASK":         unavailable,
	"TRYAGAIN":    unavailable,
	"WRONGTYPE":   wrong,
}

// connectErrors are the beginnings of the errors without a code that Redis answers to a new connection. To a command
// with many arguments from a client that has not authenticated it does not answer NOAUTH, but that the length is not
// allowed.
var connectErrors = []string{
	"ERR Protocol error: unauthenticated", "ERR max number of clients", "ERR AUTH", "ERR DB index", "ERR invalid DB",
	"ERR SELECT", "ERR Client sent AUTH",
}

// classOf returns the class of an error with which Redis has answered.
func classOf(text string) class {
	for _, beginning := range connectErrors {
		if strings.HasPrefix(text, beginning) {
			return denied
		}
	}
	code, _, _ := strings.Cut(text, " ")
	return classes[strings.TrimSuffix(code, ":")]
}

// tooFew is the error of an entry that too few replicas have.
type tooFew struct {
	have int64
	want int
}

// Error says how many replicas have the entry.
func (e *tooFew) Error() string {
	return fmt.Sprintf("stored, but only %d of %d replicas have it", e.have, e.want)
}

// errNoStream is the error of a stream that does not exist.
var errNoStream = errors.New("there is no such stream: create it with XGROUP CREATE and MKSTREAM, or set CreateStreams")

// resultOf returns the result of Publish for an event that Redis has not taken.
func (p *Publisher) resultOf(stream string, err error) error {
	if errors.Is(err, goredis.Nil) {
		return p.streams.Missing(stream, p.describe(stream, errNoStream))
	}
	described := p.describe(stream, err)
	answer, answered := errors.AsType[goredis.Error](err)
	if answered && classOf(answer.Error()) == wrong {
		return p.streams.Missing(stream,
			p.describe(stream, fmt.Errorf("the key is not a stream: rename it, or use another stream: %w", err)))
	}
	p.streams.Forget(stream)
	if _, few := errors.AsType[*tooFew](err); few {
		return outbox.Unavailable(described)
	}
	if !answered {
		timeout, is := errors.AsType[net.Error](err)
		op, network := errors.AsType[*net.OpError](err)
		switch {
		case network && op.Op == "dial":
			return outbox.BrokerUnavailable(described)
		case errors.Is(err, context.DeadlineExceeded), is && timeout.Timeout(), errors.Is(err, goredis.ErrPoolTimeout):
			return outbox.Unavailable(described)
		}
		return outbox.BrokerUnavailable(described)
	}
	switch classOf(answer.Error()) {
	case denied:
		return outbox.BrokerUnavailable(described)
	case node:
		if p.cluster != nil {
			return outbox.Unavailable(described)
		}
		return outbox.BrokerUnavailable(described)
	case unavailable:
		return outbox.Unavailable(described)
	}
	return described
}

// describe adds the stream and the servers to an error.
func (p *Publisher) describe(stream string, err error) error {
	return fmt.Errorf("publish to %s at %s: %w", stream, p.servers, err)
}

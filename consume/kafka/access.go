package kafka

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// access remembers whether the brokers refuse the credentials. The client tries such a connection again and again and
// reports the refusal to nobody else.
type access struct {
	mu    sync.Mutex
	hung  int // connections in a row that were closed during the authentication
	err   error
	since time.Time
	call  func()
}

// maxHung is how many connections in a row may be closed during the authentication until that is a refusal. A broker that
// stops does it too.
const maxHung = 3

var errHungUp = errors.New("the broker closes the connection during SASL authentication")

// OnBrokerConnect implements kgo.HookBrokerConnect.
func (a *access) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	refusal := refused(err)
	if refusal == nil && a.hung >= maxHung {
		refusal = fmt.Errorf("%w: %w", ErrRefused, errHungUp)
	}
	switch {
	case err == nil:
		a.err, a.hung = nil, 0
		return
	case refusal != nil && a.err == nil:
		a.err, a.since = refusal, time.Now()
	}
	if refusal != nil && a.call != nil {
		a.call()
	}
}

// OnBrokerRead implements kgo.HookBrokerRead.
func (a *access) OnBrokerRead(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	if k := kmsg.Key(key); err != nil && (k == kmsg.SASLAuthenticate || k == kmsg.SASLHandshake) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.hung++
	}
}

// refusal returns an error that wraps ErrRefused, and since when the credentials are refused.
func (a *access) refusal() (since time.Time, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.since, a.err
}

// onRefusal has call called when credentials are refused, until forget is called.
func (a *access) onRefusal(call func()) (forget func()) {
	set := func(call func()) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.call = call
	}
	set(call)
	return func() { set(nil) }
}

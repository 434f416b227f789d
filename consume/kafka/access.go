package kafka

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
)

// access remembers what the connections of a client say about credentials and TLS. The client tries a refused
// connection again and again, and reports the refusal to nobody else.
type access struct {
	mu         sync.Mutex
	seeds      int             // the number of brokers of the Config
	mechanisms string          // of SASL, "" if there is none
	known      bool            // a broker has answered a request
	hung       int             // connections in a row that were closed by a broker that speaks Kafka
	suspects   map[string]bool // brokers that have refused a connection since one has answered
	last       error           // of a connection
	err        error
	since      time.Time
	call       func()
}

// maxHung is how many connections in a row may be closed until that is a refusal. A broker that stops closes some too.
const maxHung = 3

// begin forgets everything, and notes which SASL mechanisms client has.
func (a *access) begin(client *kgo.Client, seeds int) {
	mechanisms, _ := client.OptValue(kgo.SASL).([]sasl.Mechanism)
	names := make([]string, len(mechanisms))
	for i, m := range mechanisms {
		names[i] = m.Name()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seeds, a.mechanisms = seeds, strings.Join(names, ", ")
	a.known, a.hung, a.suspects, a.last, a.err, a.call = false, 0, nil, nil, nil, nil
}

// OnBrokerConnect implements kgo.HookBrokerConnect.
func (a *access) OnBrokerConnect(meta kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.last != nil && tooLate(err) {
		return // the earlier one says more
	}
	a.last = fmt.Errorf("broker %s: %w", addressOf(meta), err)
	if check := missing(err); check != "" {
		a.refuse(meta, fmt.Errorf("%w: broker %s%s: %w: %s", ErrRefused, addressOf(meta), a.with(), err, check))
	} else if check := untrusted(err); check != "" {
		a.refuse(meta, fmt.Errorf("%w: broker %s: %w: %s", ErrTLS, addressOf(meta), err, check))
	}
}

// OnBrokerRead implements kgo.HookBrokerRead.
func (a *access) OnBrokerRead(meta kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := kmsg.Key(key)
	opening := k == kmsg.ApiVersions || k == kmsg.SASLHandshake || k == kmsg.SASLAuthenticate
	switch {
	case err == nil && opening:
	case err == nil:
		a.known, a.err, a.last, a.hung, a.suspects = true, nil, nil, 0, nil
	case k == kmsg.ApiVersions && !passing(err) && untrusted(err) == "":
		a.refuse(meta,
			fmt.Errorf("%w: broker %s does not answer as Kafka does: %w: check the port, and whether it wants TLS: "+
				"kgo.DialTLSConfig in Config.Options", ErrTLS, addressOf(meta), err))
	case k != kmsg.ApiVersions && (opening || !a.known) && errors.Is(err, io.EOF):
		if a.hung++; a.hung >= maxHung {
			check := "check whether it wants SASL: kgo.SASL in Config.Options"
			if a.mechanisms != "" {
				check = "check user, password and mechanism: kgo.SASL in Config.Options"
			}
			a.refuse(meta, fmt.Errorf("%w: broker %s%s: it closes each connection without an answer: %s", ErrRefused,
				addressOf(meta), a.with(), check))
		}
	}
}

// refuse notes a refusal. It counts when another broker cannot help: there is none, or the client has come back to this
// one. The first one is kept until a broker answers.
func (a *access) refuse(meta kgo.BrokerMetadata, err error) {
	a.last = err
	if address := addressOf(meta); a.seeds > 1 && !a.suspects[address] {
		if a.suspects == nil {
			a.suspects = make(map[string]bool)
		}
		a.suspects[address] = true
		return
	}
	if a.err == nil {
		a.err, a.since = err, time.Now()
	}
	if a.call != nil {
		a.call()
	}
}

// with names the mechanisms of SASL.
func (a *access) with() string {
	if a.mechanisms == "" {
		return ", without SASL"
	}
	return ", SASL " + a.mechanisms
}

// untrusted returns what to check if err says that TLS does not work, or "".
func untrusted(err error) string {
	var unverified *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var record tls.RecordHeaderError
	var network *net.OpError
	switch {
	case errors.As(err, &unknown):
		return "check RootCAs in the configuration of kgo.DialTLSConfig"
	case errors.As(err, &name):
		return "check Config.Brokers, and ServerName in the configuration of kgo.DialTLSConfig"
	case errors.As(err, &unverified):
		return "check the broker's certificate"
	case errors.As(err, &record):
		return "check the port: it does not speak TLS"
	case errors.As(err, &network) && network.Op == "remote error": // a TLS alert
		return "check the client's certificate in the configuration of kgo.DialTLSConfig"
	}
	return ""
}

// passing reports whether an error of a connection may pass, because the broker is away.
func passing(err error) bool {
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, kgo.ErrClientClosed)
}

// tooLate reports whether err only says that there was no answer in time.
func tooLate(err error) bool {
	var network net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &network) && network.Timeout()
}

// addressOf returns the address of a broker.
func addressOf(meta kgo.BrokerMetadata) string {
	return net.JoinHostPort(meta.Host, strconv.Itoa(int(meta.Port)))
}

// missing returns what to check if err says that credentials or rights are missing, or "".
func missing(err error) string {
	for _, refusal := range []struct {
		code  *kerr.Error
		check string
	}{
		{kerr.TopicAuthorizationFailed, "the user needs the rights Read and Describe for the topic"},
		{kerr.GroupAuthorizationFailed, "the user needs the right Read for the group"},
		{kerr.ClusterAuthorizationFailed, "check the ACLs of the cluster"},
		{kerr.SaslAuthenticationFailed, "check user and password: kgo.SASL in Config.Options"},
		{kerr.UnsupportedSaslMechanism, "check the mechanism: kgo.SASL in Config.Options"},
		{kerr.IllegalSaslState, "check whether this port wants SASL: kgo.SASL in Config.Options"},
		{kerr.SecurityDisabled, "check kgo.SASL in Config.Options"},
	} {
		if errors.Is(err, refusal.code) {
			return refusal.check
		}
	}
	return ""
}

// refused returns an error that wraps ErrRefused if err says that rights to something are missing.
func refused(what string, err error) error {
	if check := missing(err); check != "" {
		return fmt.Errorf("%w: %s: %w: %s", ErrRefused, what, err, check)
	}
	return nil
}

// refusal returns an error that wraps ErrRefused or ErrTLS, and since when there are such ones.
func (a *access) refusal() (since time.Time, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.since, a.err
}

// explain returns why err is an error, as far as the connections know it.
func (a *access) explain(err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case err == nil:
		return nil
	case a.err != nil:
		return a.err
	case a.last != nil:
		return a.last // more than the timeout of the latest attempt
	}
	return err
}

// onRefusal has call called when a connection is refused, until forget is called.
func (a *access) onRefusal(call func()) (forget func()) {
	set := func(call func()) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.call = call
	}
	set(call)
	return func() { set(nil) }
}

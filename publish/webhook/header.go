package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outboxgen/outboxgen/internal/broker/wireheader"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// header makes the headers of a request: those of the event, then those of the endpoint's configuration, then those
// that CloudEvents and Standard Webhooks prescribe. Later ones replace earlier ones.
func (e *endpoint) header(id string, m publish.Message, now time.Time) (http.Header, error) {
	header := http.Header{"User-Agent": {"outboxgen-webhook"}}
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		if !withheld(name) {
			header.Set(name, m.Headers[name])
		}
	}
	for name, value := range e.headers {
		header.Set(name, value)
	}
	for name, value := range m.Attributes {
		header.Set("ce-"+name, wireheader.PercentEncoded(value))
	}
	header.Set("Content-Type", m.ContentType)
	header.Set("Webhook-Id", id)
	timestamp := strconv.FormatInt(now.Unix(), 10)
	header.Set("Webhook-Timestamp", timestamp)
	if len(e.keys) > 0 {
		header.Set("Webhook-Signature", e.sign(id, timestamp, m.Body))
	}
	for name, values := range header {
		if !wireheader.IsName(name) || !wireheader.IsValue(values[0]) {
			return nil, outbox.Permanent(fmt.Errorf("HTTP cannot send header %q or its value", name))
		}
	}
	if len(header["Idempotency-Key"]) == 0 {
		// An empty list sends no header. It tells net/http that it may send the request again if a kept connection turns out
		// to be closed. The event's id makes that safe.
		header["Idempotency-Key"] = []string{}
	}
	return header, nil
}

// sign returns a signature by each key in the form of Standard Webhooks: separated by spaces, each with its version
// (https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md).
func (e *endpoint) sign(id, timestamp string, body []byte) string {
	signatures := make([]string, len(e.keys))
	for i, key := range e.keys {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + timestamp + "."))
		mac.Write(body)
		signatures[i] = "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	return strings.Join(signatures, " ")
}

// withheld reports whether a header of an event is left out, because the publisher sets it or it is a credential from
// elsewhere.
func withheld(name string) bool {
	switch name = textproto.CanonicalMIMEHeaderKey(name); name {
	case "Authorization", "Cookie", "User-Agent":
		return true
	}
	return prescribed(name)
}

// prescribed reports whether the publisher or HTTP sets a header with this canonical name: the header belongs to one
// connection, describes the body, or has a meaning in Standard Webhooks or CloudEvents.
func prescribed(name string) bool {
	switch name {
	case "Accept-Encoding", "Connection", "Expect", "Host", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return true
	}
	for _, prefix := range []string{"Ce-", "Content-", "Proxy-", "Webhook-"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

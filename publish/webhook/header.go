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
	"github.com/outboxgen/outboxgen/publish/internal/attributes"
)

// canonical are the header names of the attributes.
var canonical = func() (names [attributes.Count]string) {
	for i, name := range attributes.Names {
		names[i] = textproto.CanonicalMIMEHeaderKey("ce-" + name)
	}
	return names
}()

// encoder makes the attributes of events that are encoded without publish.Message. They share allocations.
type encoder struct {
	list  attributes.List
	found []attributes.Attribute
}

// content is what a request says of an event.
type content struct {
	id, contentType string
	body            []byte
	headers         map[string]string // of the event; those in attributes are left out if list is set
	attributes      map[string]string
	found           []attributes.Attribute // instead of attributes, of list
	list            *attributes.List
}

// content encodes an event. The result is valid until the next call.
func (e *encoder) content(o *publish.Outgoing) (c content, err error) {
	if e.found, err = e.list.Append(e.found[:0], "", o.Type(), &o.Event); err != nil {
		return content{}, err
	}
	c = content{contentType: attributes.ContentType, body: o.Payload, headers: o.Headers, found: e.found, list: &e.list}
	for _, a := range e.found {
		if a.Name == attributes.ID {
			c.id = e.list.Text(a)
		}
	}
	return c, nil
}

// contentOf makes the content of an event that an encoder of the user has encoded.
func contentOf(o *publish.Outgoing, m publish.Message) content {
	return content{id: o.ID.String(), contentType: m.ContentType, body: m.Body, headers: m.Headers, attributes: m.Attributes}
}

// headers makes the headers of a request. Their values share an allocation.
type headers struct {
	http.Header
	values []string
}

// set sets a header with a canonical name.
func (h *headers) set(name, value string) {
	n := len(h.values)
	h.values = append(h.values, value)
	h.Header[name] = h.values[n : n+1 : n+1]
}

// header makes the headers of a request: those of the event, then those of the endpoint's configuration, then those
// that CloudEvents and Standard Webhooks prescribe. Later ones replace earlier ones.
func (e *endpoint) header(c content, now time.Time) (http.Header, error) {
	n := 6 + len(c.headers) + len(e.headers) + len(c.attributes) + len(c.found)
	h := headers{make(http.Header, n), make([]string, 0, n)}
	h.set("User-Agent", "outboxgen-webhook")
	if len(c.headers) > 0 {
		for _, name := range slices.Sorted(maps.Keys(c.headers)) {
			if value := c.headers[name]; !withheld(name) && !(c.list != nil && attributes.IsHeader(name, value)) {
				h.set(textproto.CanonicalMIMEHeaderKey(name), value)
			}
		}
	}
	for name, value := range e.headers {
		h.set(name, value)
	}
	for _, a := range c.found {
		h.set(canonical[a.Name], wireheader.PercentEncoded(c.list.Text(a)))
	}
	for name, value := range c.attributes {
		h.set(textproto.CanonicalMIMEHeaderKey("ce-"+name), wireheader.PercentEncoded(value))
	}
	h.set("Content-Type", c.contentType)
	h.set("Webhook-Id", c.id)
	timestamp := strconv.FormatInt(now.Unix(), 10)
	h.set("Webhook-Timestamp", timestamp)
	if len(e.keys) > 0 {
		h.set("Webhook-Signature", e.sign(c.id, timestamp, c.body))
	}
	for name, values := range h.Header {
		if !wireheader.IsName(name) || !wireheader.IsValue(values[0]) {
			return nil, outbox.Permanent(fmt.Errorf("HTTP cannot send header %q or its value", name))
		}
	}
	if len(h.Header["Idempotency-Key"]) == 0 {
		// An empty list sends no header. It tells net/http that it may send the request again if a kept connection turns out
		// to be closed. The event's id makes that safe.
		h.Header["Idempotency-Key"] = []string{}
	}
	return h.Header, nil
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

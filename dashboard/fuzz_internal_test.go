package dashboard

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// FuzzForm: what a browser sends is read or refused as a mistake of the user, and no answer is longer than what was sent.
func FuzzForm(f *testing.F) {
	for _, text := range []string{
		"topic=shop/paid&tenant=x&id=a,b", "id=" + uuid.NewString() + "&since=2h&until=2026-05-01", "topic=a/b&concurrency=-1&rate=1/1s",
		"topic=a/b&concurrency=99999999999999999999", "topic=a/b&rate=1/24h", "n=-5&of=1e9&because=0&because=9", "until=-1h", "until=2562048h", "%zz=1",
		"entity=order/4711&undelivered=1&why=x&count=3", "tenant=" + uuid.NewString() + "&entity=a/b/c", "entity=/&any_tenant=1&tenant=x",
		"p_text=a&p_n=1&p_yes=true&p_list=[1]&p_kind=%22", "p_n=1e400&p_yes=maybe", "p_list={&p_text=%ff", "payload_json=[",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		form, err := url.ParseQuery(text)
		if err != nil {
			return
		}
		refused := func(err error) {
			if err != nil {
				require.ErrorAs(t, err, new(*badRequest))
				require.Less(t, len(err.Error()), 4*len(text)+400)
			}
		}
		filter, err := filterOf(form)
		refused(err)
		for _, id := range filter.IDs {
			require.Contains(t, strings.ToLower(form.Get("id")), id.String()[:8])
		}
		_, value, err := limitOf(form)
		refused(err)
		if err == nil {
			require.GreaterOrEqual(t, value.Concurrency, 0)
			require.GreaterOrEqual(t, value.Rate.Events, 0)
		}
		_, err = idOf(form)
		refused(err)
		_, err = untilOf(form.Get("until"))
		refused(err)
		_, err = scopeOf(form)
		refused(err)
		body := forgetOf(form)
		forget, err := body.scope()
		refused(err)
		require.True(t, err != nil || forget.TenantID.Valid || forget.EntityType != "" && forget.EntityID != "")
		payload, err := payloadOf(fieldsOf(json.RawMessage(`{"properties": {"text": {"type": "string"}, "n": {"type": "integer"}, "yes": {"type": "boolean"},
			"list": {"type": "array"}, "kind": {"type": "string", "enum": ["a"]}}}`)), form)
		refused(err)
		require.True(t, err != nil || json.Valid(payload), string(payload))
		r := resultOf(form)
		require.True(t, r.N >= 0 && r.Of >= 0 && r.Refused >= 0 && len(r.Why) <= len(refusals))
		require.Equal(t, r, resultOf(r.query("act")))
	})
}

// FuzzTraceURL: a header of an event, which anybody may have written, changes only the ids in the link.
func FuzzTraceURL(f *testing.F) {
	f.Add("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	f.Add("00-javascript:alert(1)-x-01")
	f.Add("00-../../../../etc-?a=b#c-01")
	f.Fuzz(func(t *testing.T, traceparent string) {
		link := traceURL("https://traces.example.com/trace/{trace_id}?span={span_id}", traceparent)
		if link == "" {
			return
		}
		u, err := url.Parse(link)
		require.NoError(t, err)
		require.Equal(t, "traces.example.com", u.Host)
		require.Regexp(t, `^/trace/[0-9a-f]{32}$`, u.Path)
		require.Regexp(t, `^span=[0-9a-f]{16}$`, u.RawQuery)
	})
}

// FuzzLoopback: without Authorize, only names of this machine are let in.
func FuzzLoopback(f *testing.F) {
	for _, host := range []string{
		"localhost", "LOCALHOST:80", "a.localhost.", "127.0.0.1", "[::1]:8080", "::1", "127.1", "0x7f.1", "2130706433", "127.0.0.1.example.com",
		"localhost.example.com", "localhost@evil", "evil#localhost", "[::ffff:127.0.0.1]", "[::1%25eth0]", ".localhost", "", "[[::1]]",
	} {
		f.Add(host)
	}
	authorize := Loopback("me")
	here := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80}
	f.Fuzz(func(t *testing.T, host string) {
		r := (&http.Request{Host: host, Header: http.Header{}, RemoteAddr: "127.0.0.1:9"}).WithContext(
			context.WithValue(t.Context(), http.LocalAddrContextKey, net.Addr(here)))
		if _, err := authorize(r); err != nil {
			return
		}
		name := strings.ToLower(host)
		if h, _, err := net.SplitHostPort(name); err == nil {
			name = h
		}
		name = strings.TrimSuffix(strings.Trim(name, "[]"), ".")
		if name == "localhost" || strings.HasSuffix(name, ".localhost") {
			require.False(t, strings.ContainsAny(strings.TrimSuffix(host, name), "@/\\?#"))
			return
		}
		ip, err := netip.ParseAddr(name)
		require.NoError(t, err)
		require.True(t, ip.IsLoopback())
	})
}

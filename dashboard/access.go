package dashboard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
)

// policy is the Content-Security-Policy of all answers: everything comes from the page itself, and nothing is inline.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// Challenge is an error of an Authorize that asks the browser for a user name and a password.
type Challenge struct {
	Realm string
}

// Error says that a password is needed.
func (c *Challenge) Error() string { return "a user name and a password are needed" }

// Loopback returns an Authorize for the people at this machine. It admits requests that come from a loopback address to
// a loopback address, for a host name that means this machine, and that no proxy has passed on. They act as who; ""
// means the name of the host.
func Loopback(who string) func(*http.Request) (string, error) {
	if who == "" {
		host, _ := os.Hostname()
		who = "somebody at " + host
	}
	return func(r *http.Request) (string, error) {
		for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip", "Via"} {
			if r.Header.Get(name) != "" {
				return "", errNotLocal
			}
		}
		to, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		if to == nil || !isLoopback(to.String()) || to.Network() != "unix" && !isLoopback(r.RemoteAddr) {
			return "", errNotLocal
		}
		// A web site can make its own name mean 127.0.0.1. Its requests still carry that name.
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
		if ip, err := netip.ParseAddr(host); host != "localhost" && !strings.HasSuffix(host, ".localhost") &&
			(err != nil || !ip.IsLoopback()) {
			return "", fmt.Errorf("this page is for this machine only: open it as localhost, not as %q", host)
		}
		return who, nil
	}
}

var errNotLocal = errors.New("this page is for this machine only; Authorize in its configuration can let others in")

func isLoopback(addr string) bool {
	at, err := netip.ParseAddrPort(addr)
	return err == nil && at.Addr().Unmap().IsLoopback() || strings.HasPrefix(addr, "@") || strings.HasPrefix(addr, "/")
}

// ServeHTTP answers the requests that Authorize lets in.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	who, err := p.cfg.Authorize(r)
	var challenge *Challenge
	switch {
	case errors.As(err, &challenge):
		h.Set("WWW-Authenticate", fmt.Sprintf("Basic realm=%q, charset=\"UTF-8\"", challenge.Realm))
		http.Error(w, challenge.Error(), http.StatusUnauthorized)
		return
	case err != nil:
		http.Error(w, "not allowed: "+err.Error(), http.StatusForbidden)
		return
	case who == "":
		p.cfg.Logger.ErrorContext(r.Context(), "dashboard: Authorize returned no name and no error")
		http.Error(w, "not allowed: it is not known who you are", http.StatusForbidden)
		return
	}
	if err := p.origins.Check(r); err != nil {
		http.Error(w, "not allowed: the request comes from another site", http.StatusForbidden)
		return
	}
	p.mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), whoKey{}, who)))
}

type whoKey struct{}

// whoIs returns what Authorize returned.
func whoIs(ctx context.Context) string {
	who, _ := ctx.Value(whoKey{}).(string)
	return who
}

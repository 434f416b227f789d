// Package freeport finds ports for servers of tests that are stopped and started again.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// The ports that are tried: below those that systems hand out themselves.
const first, last = 15_000, 32_000

var (
	mu      sync.Mutex
	claimed []net.PacketConn // which a finalizer would close otherwise
)

// Find returns a TCP port of 127.0.0.1 that nobody listens at, and that no process that runs has found. Unlike the port
// that a system hands out it stays free while a server that had it is stopped: no outgoing connection gets it.
func Find() (int, error) {
	low, high := first, last
	// https://docs.kernel.org/networking/ip-sysctl.html#ip-variables
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		var from, to int
		if n, err := fmt.Sscan(string(text), &from, &to); n == 2 && err == nil && from <= high && to >= low {
			if high = from - 1; high-low < 1000 {
				low, high = to+1, 65_535
			}
		}
	}
	if high <= low {
		low, high = first, last
	}
	var err error
	for range 100 {
		port := low + rand.IntN(high-low)
		if !claim(port) {
			continue
		}
		if err = try(net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("find a free port from %d to %d: %w", low, high, err)
}

// try returns an error if somebody listens at address. No process is started meanwhile: it would have the listener too.
func try(address string) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	return l.Close()
}

// Reclaim waits until nobody listens at an address at which this process has listened. A process that was started before
// has the listener too, for a moment: until its program runs, which can be after the fork lock is free again. A server that
// is started again in this process calls Reclaim before it listens.
func Reclaim(address string) error {
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		err := try(address)
		if err == nil || time.Since(began) > time.Minute {
			return err
		}
	}
}

// claim reports whether no process that runs has claimed port. A claim is the UDP port of the same number, which the
// process keeps until it ends.
func claim(port int) bool {
	c, err := net.ListenPacket("udp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	mu.Lock()
	defer mu.Unlock()
	claimed = append(claimed, c)
	return true
}

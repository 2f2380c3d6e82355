// Puts new keys into etcd from many callers, through etcd's own client, and prints figures.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"sort"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	valueBytes = 256
	warmUp     = time.Second
)

// A caller's latencies of the puts that began after the warm-up.
type samples []time.Duration

func main() {
	address := flag.String("address", "", "host:port")
	seconds := flag.Float64("seconds", 5, "how long to measure, after a second of warm-up")
	callers := flag.Int("callers", 256, "how many put at once")
	flag.Parse()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{*address}, DialTimeout: 5 * time.Second})
	if err != nil {
		fail(err)
	}
	defer client.Close()
	duration := time.Duration(*seconds * float64(time.Second))
	all := measure(client, *callers, duration)
	if len(all) == 0 {
		fail(fmt.Errorf("nothing was answered while measuring"))
	}
	if err := json.NewEncoder(os.Stdout).Encode(figures(all, *seconds)); err != nil {
		fail(err)
	}
}

func measure(client *clientv3.Client, callers int, duration time.Duration) samples {
	begin := time.Now().Add(warmUp)
	ends := begin.Add(duration)
	heard := make([]samples, callers)
	var waiting sync.WaitGroup
	for number := range callers {
		waiting.Add(1)
		go func() {
			defer waiting.Done()
			heard[number] = put(client, number, begin, ends)
		}()
	}
	waiting.Wait()
	var all samples
	for _, each := range heard {
		all = append(all, each...)
	}
	return all
}

func put(client *clientv3.Client, caller int, begin, ends time.Time) samples {
	value := make([]byte, valueBytes)
	rand.Read(value)
	var heard samples
	for count := 0; time.Now().Before(ends); count++ {
		key := fmt.Sprintf("load-%d-%03d-%012d", os.Getpid(), caller, count)
		sent := time.Now()
		if _, err := client.Put(context.Background(), key, string(value)); err != nil {
			fail(err)
		}
		if answered := time.Now(); sent.After(begin) && answered.Before(ends) {
			heard = append(heard, answered.Sub(sent))
		}
	}
	return heard
}

func figures(all samples, seconds float64) map[string]float64 {
	sort.Slice(all, func(left, right int) bool { return all[left] < all[right] })
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		fail(err)
	}
	cpu := time.Duration(used.Utime.Nano() + used.Stime.Nano())
	return map[string]float64{
		"commands_per_s": float64(len(all)) / seconds,
		"p50_ms":         milliseconds(all[len(all)*50/100]),
		"p99_ms":         milliseconds(all[len(all)*99/100]),
		"load_cpu_s":     cpu.Seconds(),
	}
}

func milliseconds(duration time.Duration) float64 {
	return float64(duration.Microseconds()) / 1000
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// serveUpstream answers every request at once and as cheaply as can be: what it does not use of the processors shows what the
// proxies cost. It understands what a Go transport sends, no more.
func serveUpstream(args []string) error {
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	life := flags.Duration("life", time.Minute, "time to live")
	size := flags.Int("size", 1<<10, "bytes of an answer's body")
	if err := flags.Parse(args[1:]); err != nil {
		return flag.ErrHelp
	}
	answer := fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n%s",
		*size, bytes.Repeat([]byte{'x'}, *size))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	announce(l.Addr(), *life)
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go answerAll(c, answer)
	}
}

func answerAll(c net.Conn, answer []byte) {
	defer c.Close()
	r := bufio.NewReaderSize(c, 8<<10)
	for {
		length, err := readHead(r)
		if err != nil {
			return
		}
		if _, err := r.Discard(length); err != nil {
			return
		}
		if _, err := c.Write(answer); err != nil {
			return
		}
	}
}

// readHead reads a message up to its body and returns the body's length.
func readHead(r *bufio.Reader) (length int, err error) {
	for first := true; ; first = false {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 && !first {
			return length, nil
		}
		switch name, value, _ := bytes.Cut(line, []byte(": ")); {
		case len(name) == len("Content-Length") && strings.EqualFold(string(name), "Content-Length"):
			if length, err = strconv.Atoi(string(value)); err != nil || length < 0 {
				return 0, fmt.Errorf("content length %q", value)
			}
		case len(name) == len("Transfer-Encoding") && strings.EqualFold(string(name), "Transfer-Encoding"):
			return 0, fmt.Errorf("transfer encoding %q: %w", value, io.ErrUnexpectedEOF)
		}
	}
}

// Command generate writes the Go code of the protocol files, and the OpenAPI description, without protoc: everything it needs comes from the Go module proxy.
//
//	go run . -root .. -out ../.. -openapi ../../decision/openapi.json cortex/v1/decision.proto
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/pluginpb"
)

const module = "github.com/seed-a29ca62a/cortex"

var plugins = []struct{ pkg, params string }{
	{"google.golang.org/protobuf/cmd/protoc-gen-go", "module=" + module},
	{"connectrpc.com/connect/cmd/protoc-gen-connect-go", "module=" + module + ",package_suffix,simple"},
}

func main() {
	log.SetFlags(0)
	root := flag.String("root", "..", "directory that the protocol files are named from")
	out := flag.String("out", "../..", "root of the Go module")
	api := flag.String("openapi", "", "file to write an OpenAPI description of the services to")
	flag.Parse()
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{*root}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	files, err := compiler.Compile(context.Background(), flag.Args()...)
	if err != nil {
		log.Fatal(err)
	}
	request := &pluginpb.CodeGeneratorRequest{FileToGenerate: flag.Args()}
	for _, f := range files {
		request.ProtoFile = append(request.ProtoFile, protodesc.ToFileDescriptorProto(f))
	}
	if *api != "" {
		if err := openAPI(files[0], *api); err != nil {
			log.Fatal(err)
		}
	}
	for _, p := range plugins {
		request.Parameter = proto.String(p.params)
		if err := generate(request, p.pkg, *out); err != nil {
			log.Fatalf("%s: %v", p.pkg, err)
		}
	}
}

// generate runs a plugin of protoc's, of the version in this module's go.mod.
func generate(request *pluginpb.CodeGeneratorRequest, plugin, out string) error {
	in, err := proto.Marshal(request)
	if err != nil {
		return err
	}
	cmd := exec.Command("go", "run", plugin)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), os.Stderr
	answer, err := cmd.Output()
	if err != nil {
		return err
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(answer, &response); err != nil {
		return err
	}
	if response.Error != nil {
		return fmt.Errorf("%s", *response.Error)
	}
	for _, f := range response.File {
		name := filepath.Join(out, filepath.FromSlash(f.GetName()))
		if !filepath.IsLocal(f.GetName()) || strings.Contains(f.GetName(), "..") {
			return fmt.Errorf("it wants to write %s", f.GetName())
		}
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, []byte(f.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

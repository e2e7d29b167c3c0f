# What people type. Meson does the work; see doc/development.md.
#
#   make run      install what is missing, build, write a default config, start the proxy
#   make test     install what is missing, build every variant, run the whole suite
#   make          build only (build/culvert)
#   make install  into /usr/local, with the systemd units (DESTDIR and PREFIX are honoured)
#   make bench    measure beside other proxies (doc/benchmarks.md)

PREFIX ?= /usr/local
BUILD  := build

.PHONY: all run test quick bench install format clean

all: $(BUILD)/culvert

# Ninja decides what is out of date.
.PHONY: $(BUILD)/culvert
$(BUILD)/culvert: $(BUILD)/build.ninja
	@ninja -C $(BUILD) src/app/culvert >$(BUILD)/make.log 2>&1 || { cat $(BUILD)/make.log; exit 1; }
	@ln -sf src/app/culvert $(BUILD)/culvert

$(BUILD)/build.ninja:
	@scripts/setup build
	@echo "configuring $(BUILD)"
	@meson setup $(BUILD) --buildtype=release -Dtests=false -Dprefix=$(PREFIX) >/dev/null

run:
	@scripts/setup build run
	@$(MAKE) --no-print-directory all
	@$(BUILD)/culvert init -c culvert.yaml
	@exec $(BUILD)/culvert run -c culvert.yaml

test:
	@scripts/setup build test
	@scripts/test

# The unit tests alone, for the edit-and-try loop.
quick:
	@scripts/setup build
	@test -d $(BUILD)-quick || CC=gcc meson setup $(BUILD)-quick -Db_sanitize=address,undefined >/dev/null
	@meson test -C $(BUILD)-quick --suite unit --print-errorlogs

bench:
	@scripts/setup build bench
	@$(MAKE) --no-print-directory all
	@bench/run

install: all
	@meson configure $(BUILD) -Dprefix=$(PREFIX)
	@DESTDIR="$(DESTDIR)" meson install -C $(BUILD) --no-rebuild

format:
	@clang-format-19 -i $$(git ls-files -co --exclude-standard 'src/*.[ch]' 'tests/*.[ch]' 'fuzz/*.[ch]' 'bench/*.[ch]')

clean:
	@rm -rf $(BUILD) $(BUILD)-quick $(BUILD)-test

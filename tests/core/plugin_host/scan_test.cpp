// Which plugins are found, which may run, and what is said about the others.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "core/plugin_host/library.hpp"
#include "core/plugin_host/manifest.hpp"
#include "tests/core/plugin_host/toys.hpp"

namespace qengine::test {
namespace {

std::string run(const std::string& command) {
  std::string out;
  FILE* p = popen(command.c_str(), "r");
  char buffer[512];
  while (p && fgets(buffer, sizeof buffer, p)) out += buffer;
  if (p) pclose(p);
  return out;
}

TEST(Scan, APluginIsReadWhole) {
  const Folder folder;
  const std::string sha = install(folder.path(), "toy");
  const auto host = host_of(folder.path());
  ASSERT_EQ(host->plugins().size(), 1u) << (host->refused().empty() ? "" : host->refused()[0].reason);
  const Plugin& p = *host->plugins()[0];
  EXPECT_EQ(p.id, "test.toy");
  EXPECT_EQ(p.version, "1.2.3");
  EXPECT_EQ(p.vendor, "Toymakers");
  EXPECT_EQ(p.sha256, sha);
  EXPECT_EQ(p.trust, "builtin");
  EXPECT_EQ(p.methods.size(), 2u);
  EXPECT_EQ(p.methods[1].quant_method, "none");
  EXPECT_EQ(p.options, (std::vector<std::string>{"speed", "colour"}));
  EXPECT_NE(p.weight, nullptr);
  EXPECT_EQ(p.kv, nullptr);
  EXPECT_EQ(host->find("toy"), &p);
  EXPECT_EQ(host->find("test.toy"), &p);
  EXPECT_EQ(host->find("nothing"), nullptr);
  for (const PluginAlias& a : host->aliases()) EXPECT_NE(a.alias, "--be-nice") << "leads to a trust setting";
  EXPECT_EQ(host->aliases().size(), 4u);
}

struct Bad {
  const char* variant;
  const char* code;
  const char* text;
  ToyManifest manifest = {};
};

TEST(Scan, EachFaultIsRefusedWithItsCodeAndStopsNobodyElse) {
  const Bad cases[] = {
      {"toy_major", "E301", "toy needs plugin ABI 9.1; this qengine serves 0.1\n", {.abi = "{ major = 9, built = 1, needs = 1 }"}},
      {"toy_major", "E301", "needs plugin ABI 9.1", {}},  // the manifest lies; the descriptor tells
      {"toy_needs_more", "E301", "needs plugin ABI 0.99; this qengine serves 0.1", {.abi = "{ major = 0, built = 99, needs = 99 }"}},
      {"toy_too_old", "E301", "was built for plugin ABI 0.0", {.abi = "{ major = 0, built = 0, needs = 0 }"}},
      {"toy_not_for_me", "E301", "has no interface for plugin ABI 0.1", {}},
      {"toy_short", "E309", "its descriptor has 64 bytes", {}},
      {"toy_magic", "E309", "does not begin with the size and magic", {}},
      {"toy_no_export", "E307", "exports no qe_plugin_query", {}},
      {"toy_init_fails", "E309", "no toys today", {}},
      {"toy_no_id", "E309", "descriptor field id is NULL", {}},
      {"toy", "E306", "says id test.other, its library says test.toy", {.id = "test.other"}},
      {"toy", "E306", "says version 1.2.4, its library says 1.2.3", {.version = "1.2.4"}},
      {"toy", "E306", "says name ball, its library says toy", {.name = "ball"}},
      {"toy", "E306", "says sha256 " , {.sha256 = std::string(64, '0')}},
      {"toy", "E306", "says options heat, its library says colour speed", {.more = "options = [\"heat\"]\n"}},
      {"toy", "E306", "says methods i4, its library says i8 online", {.more = "method = [{ name = \"i4\" }]\n"}},
      {"toy", "E306", "unknown key colour", {.more = "colour = 1\n"}},
  };
  for (const Bad& bad : cases) {
    SCOPED_TRACE(std::string(bad.variant) + " " + bad.text);
    const Folder folder;
    install(folder.path(), bad.variant, bad.manifest);
    install(folder.path(), "toy_twin", {.id = "test.twin", .name = "twin"});
    const auto host = host_of(folder.path());
    EXPECT_NE(host->find("twin"), nullptr);
    EXPECT_EQ(host->plugins().size(), 1u);
    ASSERT_EQ(host->refused().size(), 1u);
    EXPECT_EQ(host->refused()[0].code, bad.code) << host->refused()[0].reason;
    EXPECT_TRUE(has_text(host->refused()[0].reason, bad.text)) << host->refused()[0].reason;
    EXPECT_TRUE(has_text(host->refused()[0].reason, "\n  in ") || has_text(bad.text, "qe_plugin_query") || has_text(bad.text, "toys today") || has_text(bad.text, "unknown key"))
        << host->refused()[0].reason;
  }
}

TEST(Scan, ANewerMinorThatStillServesUsIsLoaded) {
  const Folder folder;
  install(folder.path(), "toy_built_newer", {.abi = "{ major = 0, built = 99, needs = 1 }"});
  EXPECT_NE(host_of(folder.path())->find("toy"), nullptr);
}

TEST(Scan, FilesThatAreNoPluginsAreRefusedAsWhatTheyAre) {
  const Folder folder;
  install(folder.path(), "toy");
  const auto fake = [&](const std::string& name, const std::string& content) {
    spit(folder.path() / (name + ".so"), content);
    spit(folder.path() / (name + ".qeplugin.toml"), "schema = 1\nid = \"test." + name + "\"\nname = \"" + name + "\"\nversion = \"1.0.0\"\nlibrary = \"" + name + ".so\"\nsha256 = \"" +
                                                         sha256_of(content) + "\"\nabi = { major = 0, built = 1, needs = 1 }\n");
  };
  const std::string whole = slurp(toy_library("toy"));
  fake("text", "not a library");
  fake("empty", "");
  fake("half", whole.substr(0, whole.size() / 2));
  fake("header", whole.substr(0, 64));
  fs::create_directory(folder.path() / "folder.so");
  spit(folder.path() / "folder.qeplugin.toml", slurp(folder.path() / "text.qeplugin.toml").replace(0, 0, ""));
  fs::remove(folder.path() / "folder.qeplugin.toml");
  spit(folder.path() / "gone.qeplugin.toml", [&] {
    std::string t = slurp(folder.path() / "text.qeplugin.toml");
    return t.replace(t.find("text.so"), 7, "gone.so");
  }());
  const auto host = host_of(folder.path());
  EXPECT_EQ(host->plugins().size(), 1u);
  EXPECT_EQ(host->refused().size(), 5u);
  for (const RefusedPlugin& r : host->refused()) EXPECT_EQ(r.code, "E307") << r.reason;
}

TEST(Scan, TrustDecidesBeforeAnyCodeRuns) {
  const Folder own, other;
  const std::string sha = install(other.path(), "toy");
  const auto with = [&](Trust trust, std::vector<AllowEntry> allow) {
    PluginHostOptions o;
    o.paths = {other.path()};
    o.trust = trust;
    o.allow = std::move(allow);
    return host_of(own.path(), std::move(o));
  };
  const auto refused = [&](const PluginHost& h) { return h.refused().empty() ? "" : h.refused()[0].reason; };

  auto h = with(Trust::kHash, {});
  ASSERT_EQ(h->refused().size(), 1u);
  EXPECT_EQ(h->refused()[0].code, "E302");
  EXPECT_TRUE(has_text(refused(*h), "test.toy is not trusted: its sha256 is not in [[plugins.allow]]")) << refused(*h);
  EXPECT_TRUE(has_text(refused(*h), "after checking its source add id and sha256"));
  EXPECT_EQ(error_of([&] { h->choose("toy"); }).code(), "E302") << "asking for it says why it is not there";

  h = with(Trust::kHash, {{"test.toy", std::string(64, '1')}});
  EXPECT_TRUE(has_text(refused(*h), "is not the one in [[plugins.allow]]")) << refused(*h);
  h = with(Trust::kHash, {{"test.other", sha}});
  EXPECT_EQ(h->plugins().size(), 0u) << "a hash belongs to an id";

  h = with(Trust::kHash, {{"test.toy", sha}});
  ASSERT_EQ(h->plugins().size(), 1u) << refused(*h);
  EXPECT_EQ(h->plugins()[0]->trust, "hash");
  h = with(Trust::kAny, {});
  ASSERT_EQ(h->plugins().size(), 1u);
  EXPECT_EQ(h->plugins()[0]->trust, "any");
  h = with(Trust::kBuiltin, {{"test.toy", sha}});
  EXPECT_EQ(h->plugins().size(), 0u);
  EXPECT_TRUE(has_text(refused(*h), "--trust builtin"));
}

TEST(Scan, AFolderThatOthersCanWriteToIsNotUsed) {
  const Folder own, other;
  const fs::path inside = other.path() / "a/b";
  install(inside, "toy");
  PluginHostOptions o;
  o.paths = {inside};
  o.trust = Trust::kAny;
  EXPECT_EQ(host_of(own.path(), o)->plugins().size(), 1u);
  chmod((other.path() / "a").c_str(), 0777);
  auto h = host_of(own.path(), o);
  ASSERT_EQ(h->refused().size(), 1u);
  EXPECT_EQ(h->refused()[0].code, "E305") << h->refused()[0].reason;
  EXPECT_TRUE(has_text(h->refused()[0].reason, "hint  chmod o-w"));
  chmod((other.path() / "a").c_str(), 0755);
  chmod((inside / "toy.so").c_str(), 0666);
  h = host_of(own.path(), o);
  ASSERT_EQ(h->refused().size(), 1u);
  EXPECT_EQ(h->refused()[0].code, "E305");
}

TEST(Scan, NamesAloneAreNotTakenFromWhereOthersCanWriteEither) {
  const Folder own, other;
  install(own.path(), "toy");
  spit(other.path() / "names.qeplugin.toml", "schema = 1\nid = \"test.names\"\nname = \"names\"\nversion = \"1.0.0\"\n"
                                             "alias = [{ kind = \"name\", alias = \"gameboy\", replacement = \"toy\" }]\n");
  PluginHostOptions o;
  o.paths = {other.path()};
  o.trust = Trust::kAny;
  EXPECT_NE(host_of(own.path(), o)->find("names"), nullptr);
  chmod((other.path() / "names.qeplugin.toml").c_str(), 0666);
  const auto h = host_of(own.path(), o);
  EXPECT_EQ(h->find("names"), nullptr);
  ASSERT_EQ(h->refused().size(), 1u);
  EXPECT_EQ(h->refused()[0].code, "E305") << h->refused()[0].reason;
}

// What lies under the name after the hash was taken is not what runs: the file is opened once.
TEST(Scan, TheFileThatWasHashedIsTheFileThatIsLoaded) {
  const Folder folder;
  const std::string sha = install(folder.path(), "toy");
  const fs::path file = folder.path() / "toy.so";
  Descriptor fd = open_plugin_file(file);
  ASSERT_EQ(sha256_of_fd(fd.get(), file), sha);
  fs::copy_file(toy_library("toy_newer_version"), folder.path() / "other");
  fs::rename(folder.path() / "other", file);  // 1.10.0 now lies there
  const auto p = load_library(std::move(fd), file, sha, read_manifest_file(folder.path() / "toy.qeplugin.toml"));
  EXPECT_EQ(p->version, "1.2.3");
}

TEST(Scan, TheEnvironmentIsIgnoredWithRaisedRights) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can install a program with raised rights";
  const Folder root;
  chmod(root.path().c_str(), 0755);
  struct statvfs mount {};
  if (statvfs(root.path().c_str(), &mount) != 0 || (mount.f_flag & ST_NOSUID)) GTEST_SKIP() << root.path() << " is mounted nosuid";
  const fs::path bin = root.path() / "bin", elsewhere = root.path() / "elsewhere", lister = bin / "lister";
  fs::create_directories(bin);
  fs::copy_file(binary_dir() / "tests/plugin_host_lister", lister);
  install(elsewhere, "toy");
  const std::string as_nobody = "QENGINE_PLUGIN_PATH=" + elsewhere.string() + " setpriv --reuid 65534 --regid 65534 --clear-groups " + lister.string() + " 2>&1";
  chmod(lister.c_str(), 0755);
  EXPECT_TRUE(has_text(run(as_nobody), "test.toy")) << "without raised rights the folder is searched";
  chmod(lister.c_str(), 04755);
  EXPECT_EQ(run(as_nobody), "");
}

TEST(Scan, OfOneIdTheHigherVersionIsUsed) {
  const Folder own, other;
  install(own.path(), "toy");
  install(other.path(), "toy_newer_version", {.version = "1.10.0"});
  PluginHostOptions o;
  o.paths = {other.path()};
  o.trust = Trust::kAny;
  auto h = host_of(own.path(), o);
  ASSERT_EQ(h->plugins().size(), 1u);
  EXPECT_EQ(h->plugins()[0]->version, "1.10.0");
  o.trust = Trust::kHash;  // what is not trusted does not shadow what is
  h = host_of(own.path(), o);
  ASSERT_EQ(h->plugins().size(), 1u);
  EXPECT_EQ(h->plugins()[0]->version, "1.2.3");
}

// A model wants one or two plugins: the others' libraries are not mapped.
TEST(Scan, WhatCannotApplyStaysClosed) {
  const auto opened = [](const PluginHost& host) {
    std::string out;
    for (const auto& p : host.plugins()) out += p->opened() ? p->name + " " : "";
    return out;
  };
  const Folder folder;
  const std::string sha = install(folder.path(), "toy", {.more = "method = [{ name = \"i8\", quant_method = \"toy\" }, { name = \"online\", quant_method = \"none\" }]\n"});
  install(folder.path(), "toy_twin", {.id = "test.twin", .name = "twin", .more = "method = [{ name = \"i8\", quant_method = \"other, rare\" }, { name = \"online\", quant_method = \"rare\" }]\n"});
  install(folder.path(), "toy_magic", {.id = "test.broken", .name = "broken"});  // without methods: who knows what it reads
  PluginHostOptions o;
  o.builtin_dir = folder.path();
  PluginHost host(o);
  host.scan(PluginHost::Open::kLater);
  EXPECT_EQ(opened(host), "");
  ASSERT_EQ(host.plugins().size(), 3u) << "known by their manifests";
  const Plugin* toy = host.find("toy");
  ASSERT_TRUE(toy);
  EXPECT_FALSE(toy->data_only());
  EXPECT_EQ(toy->sha256, sha);
  EXPECT_TRUE(host.open_readers("toy"));
  EXPECT_EQ(opened(host), "toy ");
  EXPECT_EQ(host.find("toy"), toy) << "pointers to plugins stay";
  EXPECT_EQ(toy->vendor, "Toymakers");
  ASSERT_EQ(host.refused().size(), 1u) << "the one without methods was tried";
  EXPECT_EQ(host.refused()[0].id, "test.broken");
  EXPECT_EQ(host.plugins().size(), 2u);
  EXPECT_FALSE(host.open_readers("none")) << "the toy's other method";
  EXPECT_TRUE(host.open_rest());
  EXPECT_EQ(opened(host), "toy twin ");
  EXPECT_FALSE(host.open_rest());
}

TEST(Scan, AProgramFindsItsPluginsWhereverItsPrefixMoves) {
  const Folder root;
  const fs::path lister = binary_dir() / "tests/plugin_host_lister", bin = root.path() / "first/bin";
  fs::create_directories(bin);
  fs::copy_file(lister, bin / "lister");
  install(root.path() / "first/lib/qengine/plugins", "toy");
  EXPECT_TRUE(has_text(run((bin / "lister").string()), "test.toy builtin "));
  fs::rename(root.path() / "first", root.path() / "second");
  EXPECT_TRUE(has_text(run((root.path() / "second/bin/lister").string()), "test.toy builtin "));
  fs::create_symlink(root.path() / "second/bin/lister", root.path() / "link");
  EXPECT_TRUE(has_text(run((root.path() / "link").string()), "test.toy builtin "));
  // In a build they lie beside it.
  install(root.path() / "second/bin/plugins", "toy_twin", {.id = "test.twin", .name = "twin"});
  const std::string found = run((root.path() / "second/bin/lister").string());
  EXPECT_TRUE(has_text(found, "test.twin builtin"));
  EXPECT_FALSE(has_text(found, "test.toy"));
}

TEST(Scan, TheEnvironmentAddsFoldersAndTheCurrentOneIsNeverSearched) {
  const Folder root;
  const fs::path bin = root.path() / "bin", elsewhere = root.path() / "elsewhere";
  fs::create_directories(bin);
  fs::copy_file(binary_dir() / "tests/plugin_host_lister", bin / "lister");
  install(elsewhere, "toy");
  install(elsewhere / "plugins", "toy");
  const std::string in_there = "cd " + elsewhere.string() + " && ";
  EXPECT_EQ(run(in_there + (bin / "lister").string()), "");
  EXPECT_EQ(run(in_there + "QENGINE_PLUGIN_PATH=:.::plugins: " + (bin / "lister").string() + " 2>/dev/null"), "") << "empty and relative entries would mean the current folder";
  EXPECT_EQ(run("QENGINE_PLUGIN_PATH=/nonexistent:" + elsewhere.string() + " " + (bin / "lister").string()), "refused E302 test.toy\n");
}

TEST(Scan, OptionsThatNoPluginDeclaresAreNamed) {
  const Folder folder;
  install(folder.path(), "toy");
  PluginHostOptions o;
  o.plugin_options["toy"] = Json{{"sped", 1}};
  const Error e = error_of([&] { host_of(folder.path(), o)->check_options(); });
  EXPECT_EQ(e.code(), "E102");
  EXPECT_TRUE(has_text(e.what(), "unknown option plugins.options.toy.sped\n  hint  did you mean speed?")) << e.what();
  o.plugin_options = {{"toys", Json::object()}};
  EXPECT_TRUE(has_text(error_of([&] { host_of(folder.path(), o)->check_options(); }).what(), "did you mean toy?"));
  o.plugin_options = {{"toy", Json{{"speed", 1}}}, {"test.toy", Json{{"colour", "red"}}}};
  host_of(folder.path(), o)->check_options();
}

TEST(Scan, OneFileCanBeLookedAtWithoutRunningIt) {
  const Folder folder;
  const std::string sha = install(folder.path(), "toy_init_fails");
  for (const char* name : {"toy_init_fails.so", "toy_init_fails.qeplugin.toml"}) {
    const Plugin p = PluginHost::read_manifest(folder.path() / name);
    EXPECT_EQ(p.id, "test.toy");
    EXPECT_EQ(p.sha256, sha);
    EXPECT_EQ(p.path.filename(), "toy_init_fails.so");
  }
  EXPECT_EQ(error_of([&] { PluginHost::read_manifest(folder.path() / "no.so"); }).code(), "E307");
  spit(folder.path() / "lonely.so", "x");
  EXPECT_EQ(error_of([&] { PluginHost::read_manifest(folder.path() / "lonely.so"); }).code(), "E306");
}

}  // namespace
}  // namespace qengine::test

// A model that a process of Python evaluates.
#include <memory>
#include <string>
#include <utility>

#include "core/json.h"
#include "core/list.h"
#include "core/model.h"
#include "core/python_process.h"
#include "core/threads.h"

namespace mdops::core {

namespace {

class PythonModel : public Model {
 public:
  PythonModel(std::shared_ptr<PythonProcess> process, int64_t number, const Json& about,
              const Request& request)
      : Model(about, request),
        process_(std::move(process)),
        number_(number),
        passes_messages_(about.at("passes_messages").as_bool()),
        gpu_(request.gpu) {
    cutoff_ = about.at("cutoff").as_number(), shortest_ = about.at("shortest").as_number();
    virtual_scale_ = about.at("virtual_scale").as_number();
    fparam_ = about.at("fparam").as_integer(), aparam_ = about.at("aparam").as_integer();
    takes(fparam_, aparam_, about.at("needs_fparam").as_bool());
    set_threads(request.threads);
  }

  ~PythonModel() override { process_->free(number_); }

  void compute(const mdops_input& input, mdops_output& output) override {
    const std::lock_guard<std::mutex> lock(guard_);
    output.atom = -1;
    const mdops_exchange others = input.list && passes_messages_ ? input.list->exchange : mdops_exchange{};
    try {
      answer(input, output);
    } catch (const StopsElsewhere&) {
      throw;
    } catch (const std::exception& error) {
      if (const auto* const refused = dynamic_cast<const Refused*>(&error)) output.atom = refused->atom;
      if (others.call) others.call(others.context, MDOPS_FAILED, nullptr, nullptr, 0);
      throw;
    }
    if (others.call && others.call(others.context, MDOPS_DONE, nullptr, nullptr, 0)) throw StopsElsewhere();
  }

  void search(const mdops_input& input, double skin, mdops_list& list) override {
    const std::lock_guard<std::mutex> lock(guard_);
    check_atoms(input);
    list.search(input, cutoff_ + skin, ntypes());
  }

  void set_threads(int threads) override { threads_ = threads ? threads : default_threads(); }

  mdops_info info() const override {
    mdops_info info = Model::info();
    info.threads = threads_, info.gpu = gpu_;
    info.in_python = 1, info.passes_messages = passes_messages_;
    info.virtual_scale = virtual_scale_;
    return info;
  }

 private:
  void answer(const mdops_input& input, mdops_output& output) {
    check(input);
    const Box box(input);
    const mdops_list* list = input.list;
    if (!list) found_.search(input, cutoff_, ntypes()), list = &found_;
    list->check_on(-1);
    if (passes_messages_ && list->ghosts && list->sources.empty())
      throw Error(
          MDOPS_INVALID,
          "the model passes messages, so the list needs to know of which atoms its ghosts are images: "
          "mdops_neighbors.sources");
    process_->compute({number_, fparam_, aparam_, threads_, input, box}, *list, output);
  }

  const std::shared_ptr<PythonProcess> process_;
  const int64_t number_;
  const bool passes_messages_;
  const int gpu_;
  int64_t fparam_ = 0, aparam_ = 0;
  double virtual_scale_ = 0;
  int threads_ = 1;
  mdops_list found_;  // if the caller has none
};

}  // namespace

std::unique_ptr<Model> python_model(const std::string& path, const mdops_options& options,
                                    const Request& request, const std::string& python) {
  if (options.part == MDOPS_DIPOLES)
    throw Error(MDOPS_UNSUPPORTED,
                "it has no part for this library, and Python evaluates energies alone here");
  std::shared_ptr<PythonProcess> process = PythonProcess::of(python, options.device ? options.device : "cpu");
  const PythonProcess::Loaded loaded = process->load(path, options);
  return std::make_unique<PythonModel>(std::move(process), loaded.number, Json::parse(loaded.about), request);
}

}  // namespace mdops::core
